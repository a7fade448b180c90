"""What there is to say about registered plugins."""

from __future__ import annotations

import difflib
import inspect
import re
import types
import typing
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from infctl import compose
from infctl.errors import InputError, UsageError


def catalogue(seam: str | None) -> list[compose.PluginInfo]:
    """The registered plugins of a seam, or of all. Raises UsageError."""
    if seam is not None and seam not in compose.SEAMS:
        close = difflib.get_close_matches(seam, compose.SEAMS, 1)
        raise UsageError(
            f"there is no seam {seam!r}" + (f" (did you mean {close[0]}?)" if close else ""),
            hint=f"Seams: {', '.join(compose.SEAMS)}.",
        )
    return compose.catalogue(seam)


def description(name: str, seam: str | None) -> str:
    """A plugin's docstring and parameters. Raises UsageError, InputError."""
    info = _find(name, seam)
    plugin = compose.find(info.seam, info.ref if ":" in name else info.name)
    origin = f" from {info.distribution}" if info.distribution else ""
    parts = [
        f"{info.name}: {info.seam}{origin}\n{info.ref}",
        inspect.getdoc(inspect.getmodule(plugin)) or "",
        inspect.getdoc(plugin) or "",
        _parameters(info.seam, plugin),
    ]
    return "\n\n".join(part for part in parts if part)


def _find(name: str, seam: str | None) -> compose.PluginInfo:
    if ":" in name:
        if seam is None:
            raise UsageError(f"say what {name} is", hint="For example: --seam scorer.")
        return compose.PluginInfo(seam, name, name, "", "")
    known = catalogue(seam)
    found = [info for info in known if info.name == name]
    if not found:
        close = difflib.get_close_matches(name, [info.name for info in known], 1)
        raise UsageError(
            f"there is no plugin {name!r}" + (f" (did you mean {close[0]}?)" if close else ""),
            hint="`infctl plugin list` shows them all.",
        )
    if len(found) > 1:
        seams = ", ".join(info.seam for info in found)
        raise UsageError(f"{name!r} is several plugins: {seams}", hint="Choose with --seam.")
    return found[0]


def summaries(infos: Sequence[compose.PluginInfo]) -> list[str]:
    """What each plugin does, in a sentence: its module's where that is about it alone."""
    shared = Counter(info.ref.partition(":")[0] for info in infos)
    return [_summary(info, shared[info.ref.partition(":")[0]] == 1) for info in infos]


def _summary(info: compose.PluginInfo, alone: bool) -> str:
    try:
        plugin = compose.find(info.seam, info.name)
    except InputError as error:
        return error.message
    own, module = _sentence(plugin), _sentence(inspect.getmodule(plugin))
    return (module or own) if alone or not own else own


def _sentence(thing: object) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].rstrip(".")


def _parameters(seam: str, plugin: type[Any]) -> str:
    if seam == "engine":
        return (
            "Its arguments are the engine's own flags, in snake_case: "
            "engine.args: {max_num_seqs: 256}."
        )
    hints = _annotations(plugin)
    rows = [
        (p.name, kind(hints.get(p.name, p.annotation)), p.default)
        for p in inspect.signature(plugin).parameters.values()
    ]
    lines = [
        f"  {name}: {words}" + ("" if default is inspect.Parameter.empty else f" = {default!r}")
        for name, words, default in rows
    ]
    return "\n".join(["Parameters:", *lines]) if lines else "No parameters."


def _annotations(plugin: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(plugin, include_extras=True)
    except (NameError, TypeError):  # names that are imported for type checkers alone
        return {}


_KINDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "nothing",
}


def kind(annotation: Any) -> str:
    """A parameter's type in plain words: `number, 0 to 1,000,000`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        bounds = [_bounds(m) for m in arguments[1:] if isinstance(m, msgspec.Meta)]
        return ", ".join([kind(arguments[0]), *filter(None, bounds)])
    if origin is typing.Literal:
        return " or ".join(repr(each) for each in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(each) for each in arguments)
    if origin in (list, tuple, set, frozenset):
        return f"list of {kind(arguments[0])}" if arguments else "list"
    if annotation in _KINDS:
        return _KINDS[annotation]
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return next((v for k, v in _KINDS.items() if k.__name__ == text), str(text))


def _bounds(meta: msgspec.Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f"{_figure(meta.ge)} to {_figure(meta.le)}"
    signs = zip("≥>≤<", (meta.ge, meta.gt, meta.le, meta.lt), strict=True)
    return ", ".join(f"{sign} {_figure(bound)}" for sign, bound in signs if bound is not None)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
