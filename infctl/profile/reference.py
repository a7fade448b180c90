"""docs/profile.md, from the model: every part of a profile with its keys, types and bounds."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infctl.profile.model import Profile
from infctl.profile.problems import unit_of

_HEAD = """\
# The profile

<!-- Generated from infctl/profile/model.py: `python -m infctl.cli.generate`. -->

One YAML file describes a fleet. `infctl profile init` writes one with comments, `infctl profile
validate FILE` tells everything that is wrong with one, `infctl profile show FILE --resolved` prints
it as infctl understands it, and `infctl profile schema` prints the JSON schema for your editor.

## Layers

- `extends: NAME` or `extends: path/to/file.yaml` (relative to the file that says it) lays the file
  over another one. Mappings merge key by key, unless both name another `type`: then the new one
  replaces the old. Lists whose items all have a `name` merge by name; other lists are replaced.
- `INFCTL_SET__ROUTING__PICKER=round-robin` in the environment overrides `routing.picker`.
- `--set routing.picker=round-robin` comes last. Items of a list go by name or number:
  `--set pools.chat.units.ready=3`. A key that holds dots stands in double quotes.

Values of overrides are YAML: `--set 'routing.scorers=[queue-depth, {type: kv-usage, weight: 2}]'`.

A tag that would run code is refused, and so are keys that stand twice, files above 1 MiB and
aliases that expand to more than 100,000 values.
"""

_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def render() -> str:
    """The whole document."""
    return "\n".join([_HEAD, *(_section(path, part) for path, part in _parts("", Profile))])


def _parts(path: str, part: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every part with the path of its first place, in the order of the model."""
    seen: set[type[BaseModel]] = set()
    waiting = [(path, part)]
    while waiting:
        path, part = waiting.pop(0)
        if part in seen:
            continue
        seen.add(part)
        yield path, part
        inner = [
            (_joined(path, name, info.annotation), found)
            for name, info in part.model_fields.items()
            for found in _inner(info.annotation)
        ]
        waiting = inner + waiting


def _joined(path: str, name: str, annotation: Any) -> str:
    suffix = "[]" if any(typing.get_origin(a) is list for a in _members(annotation)) else ""
    return f"{path}.{name}{suffix}".lstrip(".")


def _inner(annotation: Any) -> Iterator[type[BaseModel]]:
    for member in _members(annotation):
        if typing.get_origin(member) is list:
            yield from _inner(typing.get_args(member)[0])
        elif isinstance(member, type) and issubclass(member, BaseModel):
            yield member


def _members(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _section(path: str, part: type[BaseModel]) -> str:
    title = f"## `{path}`" if path else "## The whole"
    rows = ["| key | value | default |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {_value(name, info)} | {_default(info)} |"
        for name, info in part.model_fields.items()
    ]
    if part.model_config.get("extra") == "allow":
        rows.append("| any other | a parameter of the plugin | |")
    return "\n".join([title, "", inspect.getdoc(part) or "", "", *rows, ""])


def _value(name: str, info: FieldInfo) -> str:
    unit = unit_of(name)
    parts = [_type(info.annotation), unit, *_bounds(info)]
    return ", ".join(part for part in parts if part).replace("|", r"\|")


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type(arguments[0])} to {_type(arguments[1])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(a) for a in arguments if a is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return _TYPES.get(annotation, "any value")


def _bounds(info: FieldInfo) -> Iterator[str]:
    for each in info.metadata:
        for attribute, sign in _SIGNS.items():
            bound = getattr(each, attribute, None)
            if bound is not None:
                yield f"{sign} {bound:,}"
        if getattr(each, "min_length", 0):
            yield "not empty"
        if longest := getattr(each, "max_length", None):
            yield f"at most {longest:,} long"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**needed**"
    value = info.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return "as below"
    if isinstance(value, list):
        value = [v.model_dump() if isinstance(v, BaseModel) else v for v in value]
    return f"`{json.dumps(value, ensure_ascii=False)}`"
