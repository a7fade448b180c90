"""Profiles as verbs load them: plugins and their parameters are checked with everything else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from infctl import compose
from infctl.errors import InputError
from infctl.profile.load import load as load_profile
from infctl.profile.load import load_text as load_profile_text
from infctl.profile.problems import mean

if TYPE_CHECKING:
    from infctl.profile.model import Profile

Path = tuple[str | int, ...]
Finding = tuple[Path, str]

_SEAMS = {"filters": "filter", "scorers": "scorer", "picker": "picker", "handler": "handler"}
_OWN = frozenset({"type", "weight"})
_WORDS = {
    "`float`": "a number",
    "`int`": "a whole number",
    "`bool`": "true or false",
    "`str`": "text",
    "`array`": "a list",
    "`object`": "a mapping",
    "`null`": "nothing",
}


def load(ref: str, sets: Sequence[str] = ()) -> Profile:
    """The profile `ref` names, with what the environment overrides.

    Raises ProfileError with every problem: of the file, and of the plugins it names.
    """
    return load_profile(ref, sets, os.environ, checks=(findings,))


def load_text(text: str, source: str, sets: Sequence[str] = ()) -> Profile:
    """A profile of infctl's own, with what the command line and the environment override.

    Raises ProfileError as `load` does.
    """
    return load_profile_text(text, source, sets, os.environ, checks=(findings,))


def findings(document: dict[str, Any], profile: Profile | None) -> Iterator[Finding]:
    """What is wrong with the plugins a document names.

    `profile` is the document as a profile where nothing else is wrong with it: then also what the
    pipeline and the engine make of it as a whole.
    """
    found = [*_engine(document), *_policy(document)]
    yield from found
    if profile is not None and not found:
        yield from _whole(profile)


def _engine(document: dict[str, Any]) -> Iterator[Finding]:
    config = document.get("engine")
    kind = config.get("type") if isinstance(config, dict) else None
    if isinstance(kind, str):
        yield from _plugin("engine", kind, {}, ("engine", "type"))


def _policy(document: dict[str, Any]) -> Iterator[Finding]:
    routing = document.get("routing")
    for key, value in routing.items() if isinstance(routing, dict) else ():
        seam = _SEAMS.get(key)
        if seam is None:
            continue
        several = isinstance(value, list)
        for index, ref in enumerate(value if several else [value]):
            path: Path = ("routing", key, index) if several else ("routing", key)
            name, parameters = ref, {}
            if isinstance(ref, dict):
                name = ref.get("type")
                parameters = {k: v for k, v in ref.items() if k not in _OWN}
            if isinstance(name, str):
                yield from _plugin(seam, name, parameters, path)


def _plugin(seam: str, name: str, parameters: dict[str, Any], path: Path) -> Iterator[Finding]:
    try:
        cls = compose.find(seam, name)
    except InputError as error:
        yield path, _one_line(error)
        return
    fields = list(getattr(cls, "__struct_fields__", ()))
    wrong = [key for key in parameters if key not in fields]
    for key in wrong:
        known = mean(key, fields) or f"; it takes: {', '.join(fields) or 'none'}"
        yield (*path, key), f"is no parameter of the {seam} {name}{known}"
    if not wrong:
        yield from _values(seam, name, cls, parameters, path)


def _values(
    seam: str, name: str, cls: type[Any], parameters: dict[str, Any], path: Path
) -> Iterator[Finding]:
    """Every value that a parameter cannot have: each is left out to find the next."""
    left = dict(parameters)
    while True:
        try:
            msgspec.convert(left, cls) if left else cls()
            return
        except msgspec.ValidationError as error:
            text, _, at = str(error).partition(" - at ")
            key = re.split(r"[.\[`]", at.strip("`").removeprefix("$."))[0]
            yield (*path, key) if key in left else path, f"{name}: {_worded(text)}"
            if left.pop(key, None) is None:
                return
        except Exception as error:  # a plugin's own checks may raise what they like
            yield path, f"the {seam} {name} cannot be made: {error}"
            return


def _worded(text: str) -> str:
    for word, plain in _WORDS.items():
        text = text.replace(word, plain)
    return text[:1].lower() + text[1:]


def _whole(profile: Profile) -> Iterator[Finding]:
    try:
        compose.pipeline(profile)
    except InputError as error:
        yield _path(error.where or "routing"), _one_line(error)
    try:
        engine = compose.engine(profile.engine.type)
        for unit in {unit.pool: unit for unit in compose.desired_units(profile)}.values():
            engine.commands(unit.spec)
    except InputError as error:
        yield _path(error.where or "engine"), _one_line(error)


def _path(where: str) -> Path:
    return tuple(re.sub(r"\[.*?\]", "", where).split("."))


def _one_line(error: InputError) -> str:
    """The message with its hint: a list of problems has a line for each."""
    hint = (error.hint or "").rstrip(".")
    close, _, rest = hint.partition("? ") if hint.startswith("Did you mean") else ("", "", hint)
    if close:
        close = f" ({_lower(close)}?)".replace("'", "")
    return f"{error.message}{close}" if close else f"{error.message}; {_lower(rest)}".rstrip("; ")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
