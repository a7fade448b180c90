"""The profile model's complaints, in plain words and with the line they are about."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from infctl.profile.document import Located, Problem, dotted
from infctl.profile.model import Profile

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]

_UNITS = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_mib_max": "MiB",
    "_kib_max": "KiB",
    "_tokens": "tokens",
}

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of keys and values",
    "model_attributes_type": "a mapping of keys and values",
}

_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}

_PATTERNS = {
    "name": "lower-case letters, digits and dashes, at most 63, no dash at either end",
    "extra_paths": "a path like /v1/score",
}


def of_model(error: ValidationError, root: Located) -> Iterator[Problem]:
    """Each complaint once, in the order of the file's keys."""
    seen: set[Path] = set()
    for detail in error.errors():
        path = _path(detail["loc"], root)
        if path is None or path in seen:
            continue
        seen.add(path)
        yield Problem(root.at(path), _shown(path, root), _words(detail, path, root))


def at(root: Located, path: Path, what: str) -> Problem:
    """A problem of the value at a path."""
    return Problem(root.at(path), _shown(path, root), what)


def mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing."""
    close = difflib.get_close_matches(str(word), list(known), 1, 0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _path(loc: Path, root: Located) -> Path | None:
    """The location without the names of union members; None for a member that was not meant.

    Plugins are text or a mapping, and pydantic complains about both forms of a wrong one.
    """
    for index, step in enumerate(loc):
        if step in ("str", "PluginRef"):
            given = _value(root, loc[:index])
            if (step == "str") == isinstance(given, dict):
                return None
            return loc[:index] + loc[index + 1 :]
    return loc


def _value(root: Located, path: Path) -> Any:
    node: Located | None = root
    for step in path:
        if node is None:
            return None
        if isinstance(step, int):
            node = node.items[step] if step < len(node.items) else None
        else:
            node = node.mapping.get(step)
    return node.value if node else None


def _shown(path: Path, root: Located) -> str:
    """The path with names of items in place of their numbers: `pools.short.units`."""
    shown: list[str | int] = []
    for index, step in enumerate(path):
        item = _value(root, path[: index + 1]) if isinstance(step, int) else None
        name = item.get("name") if isinstance(item, dict) else None
        named = name is not None and isinstance(name.value, str) and name.value
        shown.append(named if named else step)
    return dotted(tuple(shown))


def _words(detail: ErrorDetails, path: Path, root: Located) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    key = str(path[-1]) if path else ""
    given = _value(root, path)
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return _unknown(key, path)
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"is {given}, but must be {words} {context[bound]:,g}"
    if kind == "literal_error":
        return _choice(given, str(context["expected"]))
    if kind == "string_pattern_mismatch":
        return f"is {given!r}, but must be {_pattern(path)}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _KINDS or kind == "none_required":
        unit = f" ({unit_of(key)})" if unit_of(key) else ""
        return f"needs {_KINDS.get(kind, 'a value')}{unit}, not {_given(given, kind)}"
    return _length(kind, context) or detail["msg"]


def _unknown(key: str, path: Path) -> str:
    known = sorted(fields_at(path[:-1]))
    if close := mean(key, known):
        return f"is no key of a profile{close}"
    return f"is no key of a profile; here may be: {', '.join(known)}"


def _choice(given: Any, expected: str) -> str:
    choices = [c.strip(" '") for c in expected.replace(" or ", ",").split(",")]
    return f"is {given!r}, but must be {expected}{mean(str(given), choices)}"


def _pattern(path: Path) -> str:
    for step in reversed(path):
        if step in _PATTERNS and "models" not in path:
            return _PATTERNS[str(step)]
    return "letters, digits and . / : @ + - _ without spaces"


def unit_of(key: str) -> str:
    """The unit a key's name ends with, in words; empty if it names none."""
    return next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")


def _given(given: Any, kind: str) -> str:
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    if given is None:
        return "nothing"
    if kind == "string_type":
        return f"{str(given).lower() if isinstance(given, bool) else given} (write it in quotes)"
    return f"{given!r:.80}"


def _length(kind: str, context: dict[str, Any]) -> str | None:
    if kind in ("too_short", "string_too_short"):
        return "is empty" if context["min_length"] == 1 else "is too short"
    if kind in ("too_long", "string_too_long"):
        return f"is too long: at most {context['max_length']}"
    return None


def fields_at(path: Path) -> set[str]:
    """The keys the model knows at a path; empty where it allows any."""
    here: list[Any] = [Profile]
    for step in path:
        here = [inner for each in here for inner in _inner(each, step)]
    found = {name for each in here if _is_part(each) for name in each.model_fields}
    return found | ({"extends"} if not path else set())


def _inner(annotation: Any, step: str | int) -> Iterator[Any]:
    if _is_part(annotation):
        info = annotation.model_fields.get(step)
        yield from _members(info.annotation) if info else ()
        return
    if typing.get_origin(annotation) is list and isinstance(step, int):
        yield from _members(typing.get_args(annotation)[0])


def _members(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _is_part(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
