"""The file of API keys: who may use a router, and how much. It holds digests, never keys.

A key is 256 random bits, so one SHA-256 is enough: there is nothing a dictionary could guess.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from infctl.errors import InputError, MachineError
from infctl.profile.document import BYTES_MAX, Located, Problem, Unreadable, Where, dotted, parse
from infctl.profile.load import ProfileError
from infctl.profile.model import ModelName, Name, Part

KEYS_MAX = 10_000

Tenant = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@-]{1,128}$")]
Bound = Annotated[int, Field(gt=0, le=1_000_000_000)]


class Key(Part):
    """One API key, known by its digest. A limit that is left out does not apply.

    `tenant` is whom its requests are counted for (default: the key's name), `models` the names it
    may ask for, aliases included (default: all), `priority` a class of the profile by name, or its
    index. `expires` is a time as ISO 8601; without a zone it means UTC.
    """

    name: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tenant: Tenant | None = None
    models: Annotated[list[ModelName], Field(min_length=1, max_length=1000)] | None = None
    priority: Annotated[int, Field(ge=0, le=100)] | Name = 0
    requests_per_minute: Bound | None = None
    tokens_per_minute: Bound | None = None
    concurrent_requests: Bound | None = None
    expires: str | None = None

    @field_validator("expires")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                when(value)
            except ValueError:
                raise ValueError("is no time; write it as 2027-01-31T12:00:00Z") from None
        return value


class KeyFile(Part):
    """A file of keys."""

    apiVersion: Literal["infctl/v1"] = "infctl/v1"
    kind: Literal["Keys"] = "Keys"
    keys: Annotated[list[Key], Field(max_length=KEYS_MAX, default_factory=list)]


def when(text: str) -> float:
    """A time of a keys file in epoch seconds. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def digest(key: str) -> str:
    """What the file holds in place of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_secret(file: Path) -> bytes:
    """The bytes of a file that its owner alone may read. Raises MachineError."""
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise MachineError("is not a file", where=str(file))
            if status.st_mode & 0o077:
                raise MachineError(
                    f"is open to others than its owner (mode {stat.S_IMODE(status.st_mode):04o})",
                    where=str(file),
                    hint=f"chmod 600 {file}",
                )
            data = stream.read(BYTES_MAX * 8 + 1)
    except OSError as error:
        raise MachineError(f"cannot be read: {error.strerror}", where=str(file)) from error
    if len(data) > BYTES_MAX * 8:
        raise MachineError(f"is bigger than {BYTES_MAX * 8 // 1024} KiB", where=str(file))
    return data


def read(file: Path) -> list[Key]:
    """The keys of a file, YAML or JSON. Raises MachineError, InputError with every problem."""
    data = read_secret(file)
    if data.startswith(b"{") and (quick := _quick(data)) is not None:
        return quick
    try:
        root, found = parse(data.decode("utf-8-sig"), str(file))
    except UnicodeDecodeError as error:
        raise InputError("is no UTF-8 text", where=str(file)) from error
    except Unreadable as error:
        raise ProfileError([error.problem]) from error
    problems = [_without_value(problem) for problem in found]
    try:
        keys = KeyFile.model_validate(root.plain()).keys
    except ValidationError as error:
        raise ProfileError([*problems, *_complaints(error, root)]) from None
    problems += _repeated(keys, root)
    if problems:
        raise ProfileError(problems)
    return keys


def _quick(data: bytes) -> list[Key] | None:
    """The keys of a JSON file with nothing wrong in it, in a hundredth of the time that it takes to
    know the line of each; None where a closer look is needed."""
    try:
        keys = KeyFile.model_validate(json.loads(data, object_pairs_hook=_once)).keys
    except (ValueError, RecursionError):
        return None
    distinct = min(len({key.name for key in keys}), len({key.sha256 for key in keys}))
    return keys if distinct == len(keys) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _without_value(problem: Problem) -> Problem:
    """A complaint of YAML's may quote the value it is about."""
    what, quote, end = problem.what.partition(" cannot be read as ")
    return Problem(problem.where, problem.key, f"cannot be read as {end}" if quote else what)


def _complaints(error: ValidationError, root: Located) -> Iterator[Problem]:
    """What is wrong and where, without the values: one of them may be a key."""
    seen = set()
    for detail in error.errors(include_input=False, include_url=False):
        path = tuple(step for step in detail["loc"] if step not in ("int", "constrained-str"))
        if path not in seen:
            seen.add(path)
            yield Problem(root.at(path), dotted(path), detail["msg"].removeprefix("Value error, "))


def _repeated(keys: Sequence[Key], root: Located) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for index, key in enumerate(keys):
        for value, what in ((key.name, "this name"), (key.sha256, "this digest")):
            if value in seen:
                where: Where = root.at(("keys", index))
                yield Problem(where, f"keys[{index}]", f"{what} is {seen[value]}'s already")
            seen[value] = key.name


def text(keys: Sequence[Key], as_json: bool = False) -> str:
    """The file that holds these keys."""
    rows = [key.model_dump(exclude_defaults=True) for key in keys]
    document = {"apiVersion": "infctl/v1", "kind": "Keys", "keys": rows}
    if as_json:
        return f"{json.dumps(document, indent=2)}\n"
    return yaml.dump(document, Dumper=_Quoting, sort_keys=False)


class _Quoting(yaml.SafeDumper):
    """Quotes every string: YAML's dialects do not agree on which words are numbers."""


_Quoting.add_representer(
    str, lambda dumper, data: dumper.represent_scalar("tag:yaml.org,2002:str", data, style='"')
)
