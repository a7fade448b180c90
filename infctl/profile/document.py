"""YAML text to plain values that remember where they were written.

PyYAML composes the nodes and we build the values, so that every key keeps its file and line through
`extends`, and so that no tag can construct anything but text, numbers, lists and mappings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

BYTES_MAX = 1024 * 1024
DEPTH_MAX = 64
VALUES_MAX = 100_000
"""Values after aliases are expanded: a few lines of aliases can stand for billions of values."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "timestamp")}
_MERGE = f"{_TAG}merge"


@dataclass(frozen=True, slots=True)
class Where:
    """A place a value was written: a file and line, or an override's name with line 0."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Located:
    """A value (mapping and list items are Located again) and where its key was written."""

    value: Any
    where: Where

    @property
    def mapping(self) -> dict[str, Located]:
        """The value as a mapping; empty if it is none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Located]:
        """The value as a list; empty if it is none."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: each.plain() for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        return self.value

    def at(self, path: tuple[str | int, ...]) -> Where:
        """Where the value at a path was written, or the nearest one above it that exists."""
        node = self
        for step in path:
            child: Located | None = None
            if isinstance(step, int):
                child = node.items[step] if step < len(node.items) else None
            else:
                child = node.mapping.get(step)
            if child is None:
                break
            node = child
        return node.where


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a profile: where, at which key, what, and what to do about it."""

    where: Where
    key: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.where), self.key, self.what) if part)


class Unreadable(Exception):
    """The text is no YAML document at all: nothing further can be checked."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """SafeLoader, with `1e-5` a number as in YAML 1.2 (and JSON) instead of text."""


_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: str, source: str) -> tuple[Located, list[Problem]]:
    """The document in `text`, and what is wrong with single keys of it.

    Raises Unreadable when the text is not YAML, holds no or several documents, or is too big.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise Unreadable(Problem(Where(source), "", "is empty"))
        build = _Build(source, loader)
        return build.value(node, Where(source, node.start_mark.line + 1), ()), build.problems
    except yaml.MarkedYAMLError as error:
        raise Unreadable(_syntax(error, source)) from error
    except yaml.YAMLError as error:
        what = f"is not text a YAML file can hold: {str(error).splitlines()[0]}"
        raise Unreadable(Problem(Where(source), "", what)) from error
    except RecursionError as error:
        raise Unreadable(Problem(Where(source), "", "is nested too deeply")) from error


def _syntax(error: yaml.MarkedYAMLError, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = Where(source, mark.line + 1 if mark else 0)
    what = " ".join(part for part in (error.context, error.problem) if part)
    return Problem(where, "", f"is not valid YAML: {what}")


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as people write it: `pools[0].units.ready`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


@dataclass(slots=True)
class _Build:
    source: str
    loader: _Loader
    problems: list[Problem] = field(default_factory=list)
    values: int = 0

    def value(self, node: yaml.Node, where: Where, path: tuple[str | int, ...]) -> Located:
        self.values += 1
        if self.values > VALUES_MAX:
            what = f"holds more than {VALUES_MAX:,} values once its aliases are expanded"
            raise Unreadable(Problem(where, "", what))
        if len(path) > DEPTH_MAX:
            raise Unreadable(Problem(where, "", f"is nested deeper than {DEPTH_MAX} levels"))
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return Located(self._mapping(node, path), where)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            items = [self.value(n, self._where(n), (*path, i)) for i, n in enumerate(node.value)]
            return Located(items, where)
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return Located(self._scalar(node, path), where)
        self._problem(node, path, _refused(node.tag))
        return Located(None, where)

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, Located]:
        merged: dict[str, Located] = {}
        own: dict[str, Located] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for each in self._merged(value_node, path):
                    merged = each | merged
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            where = self._where(key_node)
            if key in own:
                first = own[key].where.line
                self._problem(key_node, (*path, key), f"is here twice (first on line {first})")
            own[key] = self.value(value_node, where, (*path, key))
        return merged | own

    def _merged(self, node: yaml.Node, path: tuple[str | int, ...]) -> Iterator[dict[str, Located]]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for each in nodes:
            value = self.value(each, self._where(each), (*path, "<<"))
            if isinstance(value.value, dict):
                yield value.value
            else:
                self._problem(each, (*path, "<<"), "needs a mapping, or a list of mappings")

    def _key(self, node: yaml.Node, path: tuple[str | int, ...]) -> str | None:
        if isinstance(node, yaml.ScalarNode):
            if node.tag == f"{_TAG}str":
                return str(node.value)
            what = f"has the key {node.value}, which is no text: write it in quotes"
        else:
            what = "has a list or a mapping as a key: keys are text"
        self._problem(node, path, what)
        return None

    def _scalar(self, node: yaml.ScalarNode, path: tuple[str | int, ...]) -> Hashable:
        if node.tag in (f"{_TAG}str", f"{_TAG}timestamp"):
            return str(node.value)
        try:
            value: Hashable = self.loader.construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            self._problem(node, path, f"{node.value!r:.60} cannot be read as {_kind(node.tag)}")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._problem(node, path, "needs a finite number")
            return None
        return value

    def _where(self, node: yaml.Node) -> Where:
        return Where(self.source, node.start_mark.line + 1)

    def _problem(self, node: yaml.Node, path: tuple[str | int, ...], what: str) -> None:
        self.problems.append(Problem(self._where(node), dotted(path), what))


def _kind(tag: str) -> str:
    return {"int": "a number", "float": "a number", "bool": "true or false"}.get(
        tag.removeprefix(_TAG), "a value"
    )


def _refused(tag: str) -> str:
    shown = f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
    return f"has the tag {shown}, which is refused: a profile holds data and never code"
