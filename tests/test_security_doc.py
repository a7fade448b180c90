"""docs/security.md names a test for every line, and SECURITY.md leads there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "security.md"
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    lines = [line for line in DOC.read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| attack ")]


def named_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row)[2:50])
def test_every_attack_has_a_test_that_exists(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 3
    found = REFERENCE.findall(cells[2])
    assert found, "no test is named"
    for file, name in found:
        assert name in named_in(ROOT / "tests" / file)


def test_there_is_a_table_and_the_policy_leads_to_it() -> None:
    assert len(rows()) > 30
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text()
