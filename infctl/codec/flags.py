"""Engine arguments of a profile as command-line flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from infctl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_SECRET_ENDINGS = ("api_key", "token", "password", "secret")


def flags(
    args: Mapping[str, Any],
    *,
    owned: Mapping[str, str],
    negated: Callable[[str], bool] = lambda _: False,
    where: str = "engine.args",
) -> tuple[str, ...]:
    """snake_case arguments as `--kebab-case` flags, in their own order.

    True is a bare flag, False its `--no-` form where `negated` says there is one and nothing
    elsewhere, None nothing; lists become several values, maps JSON. Raises InputError for an
    argument that the profile says elsewhere (`owned`: name → where), for one that would put a
    secret on a command line everybody can read, and for a name that is no identifier.
    """
    words: list[str] = []
    for name, value in args.items():
        _check(name, value, owned, where)
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is False:
            if negated(name):
                words.append("--no-" + name.replace("_", "-"))
        elif value is not None:
            words += [flag, *_values(value)]
    return tuple(words)


def without(args: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The arguments but those named."""
    return {name: value for name, value in args.items() if name not in names}


def _check(name: str, value: object, owned: Mapping[str, str], where: str) -> None:
    key = f"{where}.{name}"
    if not name.isidentifier() or not name.isascii():
        raise InputError(
            f"{name!r} is not an argument name", where=key, hint="write it in snake_case"
        )
    if name in owned:
        raise InputError(f"infctl sets {name} itself", where=key, hint=f"use {owned[name]}")
    if name.endswith(_SECRET_ENDINGS) and isinstance(value, str):
        raise InputError(
            f"{name} would be readable in the process list",
            where=key,
            hint="put it into the environment of `infctl`, or into engine.env",
        )


def _values(value: object) -> list[str]:
    if isinstance(value, (list, tuple)) and not any(isinstance(v, (list, dict)) for v in value):
        return [_text(v) for v in value]
    return [_text(value)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
