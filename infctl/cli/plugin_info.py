"""What there is to say about registered plugins."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from infctl import compose
from infctl.errors import UsageError


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
        _parameters(plugin),
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


def _parameters(plugin: type[Any]) -> str:
    signature = inspect.signature(plugin)
    rows = [
        f"  {p.name}: {_type(p.annotation)}" + ("" if p.default is p.empty else f" = {p.default!r}")
        for p in signature.parameters.values()
    ]
    return "\n".join(["Parameters:", *rows]) if rows else "No parameters."


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return str(text).removeprefix("typing.")
