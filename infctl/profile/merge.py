"""How a profile is laid over the one it extends, and `--set` and the environment over both.

Mappings merge key by key, unless each names another `type`: then the new one replaces the old.
Lists of named items merge by name, other lists are replaced.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from infctl.profile.document import Located, Problem, Unreadable, Where, parse

ENVIRONMENT = "INFCTL_SET__"

_STEP = re.compile(r'"([^"]+)"|([^."]+)')


def merge(below: Located, above: Located) -> Located:
    """`above` laid over `below`."""
    if isinstance(below.value, dict) and isinstance(above.value, dict):
        return _merge_mappings(below, above)
    if _named(below) and _named(above):
        return _merge_named(below, above)
    return above


def _merge_mappings(below: Located, above: Located) -> Located:
    kinds = [each.mapping.get("type") for each in (below, above)]
    if all(kinds) and kinds[0].value != kinds[1].value:  # type: ignore[union-attr]
        return above
    merged = dict(below.value)
    for key, value in above.value.items():
        merged[key] = merge(merged[key], value) if key in merged else value
    return Located(merged, above.where)


def _merge_named(below: Located, above: Located) -> Located:
    merged = list(below.value)
    places = {_name(item): index for index, item in enumerate(merged)}
    for item in above.value:
        index = places.get(_name(item))
        if index is None:
            merged.append(item)
        else:
            merged[index] = merge(merged[index], item)
    return Located(merged, above.where)


def _name(item: Located) -> str | None:
    name = item.mapping.get("name")
    return name.value if name and isinstance(name.value, str) else None


def _named(node: Located) -> bool:
    return bool(node.items) and all(_name(item) for item in node.items)


def override(root: Located, setting: str) -> tuple[Located, list[Problem]]:
    """The profile with one `--set a.b.c=VALUE` laid over it, and what is wrong with that."""
    where = Where(f"--set {setting}")
    key, equals, text = setting.partition("=")
    steps = _steps(key.strip())
    if not equals or not steps:
        return root, [Problem(where, "", "needs the form a.b.c=VALUE")]
    value, problems = _value(text, where)
    if problems:
        return root, problems
    return _put(root, steps, value, where)


def override_all(
    root: Located, sets: Sequence[str], environ: Mapping[str, str], fields: Iterable[str]
) -> tuple[Located, list[Problem]]:
    """The profile under the environment's overrides and then the command line's.

    `fields` are the profile's top-level keys as they are spelled; an environment variable spells
    them in capitals.
    """
    problems: list[Problem] = []
    for name in sorted(n for n in environ if n.upper().startswith(ENVIRONMENT)):
        where = Where(name)
        value, found = _value(environ[name], where)
        if not found:
            steps = _spelled(root, name[len(ENVIRONMENT) :].split("__"), fields)
            root, found = _put(root, steps, value, where)
        problems += found
    for setting in sets:
        root, found = override(root, setting)
        problems += found
    return root, problems


def _steps(key: str) -> list[str]:
    """Keys of a dotted path; one that holds dots itself stands in double quotes."""
    if not re.fullmatch(rf"(?:{_STEP.pattern})(?:\.(?:{_STEP.pattern}))*", key):
        return []
    return [quoted or bare for quoted, bare in _STEP.findall(key)]


def _value(text: str, where: Where) -> tuple[Located, list[Problem]]:
    if not text.strip():
        return Located("", where), []
    try:
        parsed, problems = parse(text, str(where))
    except Unreadable as error:
        return Located(None, where), [Problem(where, "", error.problem.what)]
    return _relocated(parsed, where), [Problem(where, p.key, p.what) for p in problems]


def _relocated(node: Located, where: Where) -> Located:
    if isinstance(node.value, dict):
        return Located({k: _relocated(v, where) for k, v in node.value.items()}, where)
    if isinstance(node.value, list):
        return Located([_relocated(v, where) for v in node.value], where)
    return Located(node.value, where)


def _put(
    node: Located, steps: Sequence[str], value: Located, where: Where
) -> tuple[Located, list[Problem]]:
    if not steps:
        return value, []
    if isinstance(node.value, list):
        return _put_item(node, steps, value, where)
    below = dict(node.mapping)
    inner = below.get(steps[0], Located({}, where))
    below[steps[0]], problems = _put(inner, steps[1:], value, where)
    return Located(below, node.where), problems


def _put_item(
    node: Located, steps: Sequence[str], value: Located, where: Where
) -> tuple[Located, list[Problem]]:
    index = _index(node, steps[0])
    if index is None:
        return node, [Problem(where, "", _no_item(node, steps[0]))]
    items = list(node.items)
    items[index], problems = _put(items[index], steps[1:], value, where)
    return Located(items, node.where), problems


def _index(node: Located, step: str) -> int | None:
    for index, item in enumerate(node.items):
        if _name(item) == step:
            return index
    if step.isdecimal() and len(step) < 7 and int(step) < len(node.items):
        return int(step)
    return None


def _no_item(node: Located, step: str) -> str:
    names = [name for item in node.items if (name := _name(item))]
    close = difflib.get_close_matches(step, names, 1)
    mean = f" (did you mean {close[0]}?)" if close else ""
    known = f"; there are {', '.join(names)}" if names else f"; it has {len(node.items)} items"
    return f"names no item {step!r} of its list{mean}{known}"


def _spelled(root: Located, steps: Sequence[str], fields: Iterable[str]) -> list[str]:
    """Steps of a variable's name in the profile's own spelling, where it has one.

    Below `engine.env` a new key keeps its capitals, elsewhere a new key is lower case.
    """
    spelled: list[str] = []
    node: Located | None = root
    known: Iterable[str] = [*root.mapping, *fields]
    for step in steps:
        matches = [k for k in known if _folded(k) == _folded(step)]
        as_is = spelled[:2] == ["engine", "env"]
        spelled.append(matches[0] if matches else step if as_is else step.lower())
        node = _child(node, spelled[-1])
        known = _keys(node)
    return spelled


def _folded(key: str) -> str:
    return key.casefold().replace("-", "_")


def _child(node: Located | None, step: str) -> Located | None:
    if node is None:
        return None
    if isinstance(node.value, list):
        index = _index(node, step)
        return None if index is None else node.items[index]
    return node.mapping.get(step)


def _keys(node: Located | None) -> list[str]:
    if node is None:
        return []
    return [*node.mapping, *(name for item in node.items if (name := _name(item)))]
