"""The event log: everything a Director was told, and what it did each time, as bytes.

The first line is the header, JSON that ends with a line feed. Records follow, each two lengths
(four bytes each, little endian), then as many bytes: what happened, `[now, item]`, and what came of
it, the commands, or the name of the exception a policy raised; nothing where there was no command.
Both are MessagePack, or JSON (which begins with `[` or a quote) where a client or an engine gave a
number that MessagePack cannot hold. Every record is complete in itself, so any beginning of a log
is a log. Prompts are in it as hashes of their blocks alone.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from infctl.core.commands import Command
from infctl.core.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

FORMAT = "infctl event log"
VERSION = 1

_HEADER_MAX = 64 << 20
_LENGTHS = Struct("<II")
_ROOM = bytes(_LENGTHS.size)
_JSON = b'["'
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, IndexError, RecursionError)


class Origin(msgspec.Struct, frozen=True):
    """Which plugin a profile's reference was: the package it came from (empty for a lone module),
    and the digest of its source file."""

    seam: str
    name: str
    package: str = ""
    version: str = ""
    digest: str = ""


class Policy(msgspec.Struct, frozen=True, tag_field="kind", tag="PolicyChanged"):
    """What the Director goes by from now on: the profile, without what is secret or decides
    nothing, and the plugins it names."""

    profile: dict[str, Any]
    plugins: list[Origin]


class Ended(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """The log was closed, and why."""

    reason: str


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to build the same Director. `shared_slots` above 0: it was one of several
    workers and shared the load of so many slots. `started` is the wall clock (ISO 8601) at the
    monotonic time `started_s`."""

    format: str = FORMAT
    version: int = VERSION
    infctl: str
    python: str
    numpy: str
    machine: str
    started: str
    started_s: float
    seed: int
    speed: float
    worker: int = 0
    shared_slots: int = 0
    policy: Policy


class _Marked(msgspec.Struct):
    format: str
    version: int


Item = Event | Policy | Ended
Outcome = list[Command] | str


def _numbers(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, "<f8").tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an event holds a {type(value).__name__}")


def _array(kind: Any, value: Any) -> Any:
    shape, data = value
    return np.frombuffer(data, "<f8").reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_numbers)
_encode_into, _pack_into = _ENCODER.encode_into, _LENGTHS.pack_into
_DECODERS = {
    part: (msgspec.msgpack.Decoder(part, dec_hook=_array).decode, msgspec.json.Decoder(part).decode)
    for part in (tuple[float, Item], Outcome)
}


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_numbers)


def encoded(outcome: Outcome) -> bytes:
    """An outcome as a record has it."""
    try:
        return _ENCODER.encode(outcome) if outcome else b""
    except OverflowError:
        return _json(outcome)


def _decode(part: Any, data: bytes) -> Any:
    packed, text = _DECODERS[part]
    return text(data) if data[0] in _JSON else packed(data)


def header_line(header: Header) -> bytes:
    """How a log begins."""
    return _json(header) + b"\n"


class Records:
    """Gathers records in a buffer. `begin`, then `end`, per event: what it holds may change while
    it is handled."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._start = self._middle = 0

    def begin(self, now: float, item: Item) -> None:
        """What happens. Raises ValueError for what no log can hold, and then has added nothing."""
        buffer = self.buffer
        start = self._start = len(buffer)
        buffer += _ROOM
        try:
            _encode_into((now, item), buffer, -1)
        except Exception:
            self._as_json((now, item), start + _LENGTHS.size)
        self._middle = len(buffer)

    def end(self, outcome: Outcome) -> None:
        """What came of it. Raises like `begin`."""
        buffer, start, middle = self.buffer, self._start, self._middle
        size = middle - start - _LENGTHS.size
        if outcome:
            try:
                _encode_into(outcome, buffer, -1)
            except Exception:
                self._as_json(outcome, middle)
        _pack_into(buffer, start, size, len(buffer) - middle)

    def _as_json(self, value: Any, at: int) -> None:
        """Put what MessagePack cannot hold behind `at`."""
        try:
            self.buffer[at:] = _json(value)
        except Exception as error:
            del self.buffer[self._start :]
            raise ValueError(str(error)) from error

    def take(self) -> bytes:
        """Everything that has gathered."""
        data = bytes(self.buffer)
        self.buffer.clear()
        return data


class Record(msgspec.Struct, frozen=True):
    """One record, counted from 1; `outcome` is encoded."""

    number: int
    now: float
    item: Item
    outcome: bytes


def described(outcome: bytes) -> str:
    """An outcome in words."""
    try:
        found = _decode(Outcome, outcome) if outcome else []
    except _UNREADABLE as error:
        return f"{len(outcome)} bytes that cannot be read: {error}"
    if isinstance(found, str):
        return f"the policy raised {found}"
    return ", ".join(map(repr, found)) or "nothing"


class NotALog(ValueError):
    """These bytes are no event log, or one that this version cannot read."""


class EventLog:
    """A log's header and records. After they have been read, `ended` says why the log ends, or is
    empty where it was cut off; `left` is how many bytes behind the last whole record are of no use,
    and `damage` what is wrong with them where they are more than cut."""

    def __init__(self, data: bytes | mmap) -> None:
        self.ended = ""
        self.left = 0
        self.damage = ""
        self._data = data
        line = data[: data.find(b"\n", 0, _HEADER_MAX) + 1]
        self.header = _header(line)
        self._at = len(line)

    def __iter__(self) -> Iterator[Record]:
        data, at, number = self._data, self._at, 0
        size = len(data)
        while at < size:
            head = data[at : at + _LENGTHS.size]
            if len(head) < _LENGTHS.size:
                break
            first, second = _LENGTHS.unpack(head)
            start = at + _LENGTHS.size
            end = start + first + second
            if end > size:
                break
            number += 1
            try:
                now, item = _decode(tuple[float, Item], data[start : start + first])
            except _UNREADABLE as error:
                self.damage = f"record {number} cannot be read: {error}"
                break
            at = end
            if isinstance(item, Ended):
                self.ended = item.reason
            yield Record(number, now, item, data[start + first : end])
        self.left = size - at


def _header(line: bytes) -> Header:
    try:
        marked = msgspec.json.decode(line, type=_Marked)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotALog("it does not begin like an event log") from error
    if marked.format != FORMAT:
        raise NotALog("it does not begin like an event log")
    if marked.version != VERSION:
        raise NotALog(f"it has format {marked.version}, and this infctl reads format {VERSION}")
    try:
        return msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise NotALog(f"its header is damaged: {error}") from error
