"""No field without a reader: what nothing reads is a promise nobody keeps.

A read counts when its holder is called what such a part is called all over the code: `slo.target`
reads Slo.target, `pool.target` does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from infctl.profile import model

ROOT = Path(__file__).parents[2]
OWN = ROOT / "infctl/profile/model.py"

HOLDERS = {
    "Profile": {"profile", "loaded", "self"},
    "Metadata": {"metadata"},
    "Model": {"model", "m"},
    "EngineConfig": {"engine"},
    "UnitConfig": {"unit", "self"},
    "ParallelConfig": {"parallel", "p"},
    "Cluster": {"cluster", "c"},
    "Pool": {"pool", "p"},
    "UnitCounts": {"units"},
    "PluginRef": {"ref"},
    "Routing": {"routing"},
    "Limits": {"limits"},
    "Health": {"health"},
    "Slo": {"slo"},
    "Tls": {"tls"},
    "EngineTls": {"engine_tls", "engines"},
    "Observability": {"observability"},
}

FIXED = {
    ("Profile", "apiVersion"): "a constant: other values are refused by its type",
    ("Profile", "kind"): "a constant: other values are refused by its type",
    ("Cluster", "target"): "a constant as long as `local` is the only target",
}


def parts() -> Iterator[tuple[str, str]]:
    for name, part in vars(model).items():
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from ((name, field) for field in part.model_fields)


def reads(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(holder, attribute) of every attribute read."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            holder = each.value
            if isinstance(holder, ast.Call):
                holder = holder.func
            if isinstance(holder, ast.Attribute | ast.Name):
                name = holder.attr if isinstance(holder, ast.Attribute) else holder.id
                yield name.lstrip("_"), each.attr


@pytest.fixture(scope="module")
def read() -> set[tuple[str, str]]:
    """What the sources read, and what the model's own methods read that others call."""
    found: set[tuple[str, str]] = set()
    for folder in ("infctl", "plugins"):
        for file in (ROOT / folder).rglob("*.py"):
            if file != OWN:
                found |= set(reads(ast.parse(file.read_text(encoding="utf-8"))))
    called = {attribute for _, attribute in found}
    for node in ast.walk(ast.parse(OWN.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name in called:
            found |= set(reads(node))
    return found


@pytest.mark.parametrize(("part", "field"), sorted(set(parts()) - set(FIXED)))
def test_every_field_is_read(part: str, field: str, read: set[tuple[str, str]]) -> None:
    readers = {(holder, field) for holder in HOLDERS.get(part, {part.lower()})}
    assert readers & read, f"nothing reads {part}.{field}"


def test_the_exceptions_are_real() -> None:
    assert set(FIXED) <= set(parts())
