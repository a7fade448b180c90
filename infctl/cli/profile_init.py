"""The text of a new profile: a shipped one under another name, comments and all."""

from __future__ import annotations

import re

from infctl.errors import InputError
from infctl.profile.load import load, read_text, shipped
from infctl.profile.problems import mean

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_METADATA = re.compile(r"^metadata:\n(  name: )\S+\n(  description: ).*\n", re.MULTILINE)

_HEAD = """\
# {name}: a fleet. Started from the shipped profile {base}.
#
#   infctl profile validate {name}.yaml
#   infctl up {name}.yaml{emulate}
#
# Every key with its default: docs/profile.md, or `infctl profile schema` for your editor.
"""


def starter(name: str, base: str) -> str:
    """A profile called `name` with the content of the shipped profile `base`.

    Raises InputError on a name that profiles cannot have and on an unknown base.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be a profile's name",
            hint="Names are lower-case letters, digits and dashes, at most 63.",
        )
    if base not in shipped():
        raise InputError(
            f"there is no shipped profile {base!r}{mean(base, shipped())}",
            hint=f"Shipped: {', '.join(shipped())}.",
        )
    body = _body(read_text(base))
    body = _METADATA.sub(rf"metadata:\n\g<1>{name}\n\g<2>Started from {base}\n", body, count=1)
    emulate = "" if load(base).engine.type == "emulated" else "   # --emulate: without GPUs"
    return _HEAD.format(name=name, base=base, emulate=emulate) + body


def _body(text: str) -> str:
    """The text without the comment at its head, which speaks of the shipped profile."""
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith("#"):
        lines.pop(0)
    return "".join(lines)
