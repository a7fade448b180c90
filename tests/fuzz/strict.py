"""A strict reader of HTTP/1.1 messages, for what the router wrote: it forgives nothing.

Written against RFC 9112, without a line of the router's; slower and plainer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

STATUS = re.compile(rb"HTTP/1\.1 ([1-9][0-9]{2}) [\t\x20-\x7e\x80-\xff]*\Z")
REQUEST = re.compile(rb"([A-Z][A-Z-]*) ([\x21-\x7e\x80-\xff]+) HTTP/1\.1\Z")
FIELD = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e\x80-\xff]"
    rb"(?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?[ \t]*\Z"
)
LENGTH = re.compile(rb"[0-9]{1,18}\Z")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,64})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_HOP = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect",
    b"transfer-encoding", b"proxy-authorization", b"proxy-authenticate",
}  # fmt: skip


class Malformed(AssertionError):
    """What the router wrote is not HTTP."""


class Message(NamedTuple):
    """One message; `complete` False where its bytes end before it does."""

    line: tuple[bytes, ...]
    headers: list[tuple[bytes, bytes]]
    body: bytes
    complete: bool
    end: int

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a header."""
        return [v for n, v in self.headers if n == name]

    @property
    def status(self) -> int:
        """Of a response."""
        return int(self.line[0])


def _head(data: bytes, at: int, first: re.Pattern[bytes]) -> Message | None:
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        return None
    line, *rows = data[at:end].split(b"\r\n")
    found = first.match(line)
    if found is None:
        raise Malformed(f"a first line that is none: {line!r}")
    headers = []
    for row in rows:
        field = FIELD.match(row)
        if field is None:
            raise Malformed(f"a header that is none: {row!r}")
        headers.append((field[1].lower(), field[2] or b""))
    return Message(found.groups(), headers, b"", False, end + 4)


def chunked(data: bytes, at: int) -> tuple[bytes, bool, int]:
    """The payload of a chunked body from `at`, whether it is complete, and where it ends."""
    parts = []
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            _may_begin(data[at:])
            return b"".join(parts), False, len(data)
        found = CHUNK.fullmatch(data, at, line + 2)
        if found is None:
            raise Malformed(f"a chunk size that is none: {data[at : line + 2]!r}")
        size, at = int(found[1], 16), line + 2
        if not size:
            return _trailers(data, at, b"".join(parts))
        parts.append(data[at : at + size])
        ending = data[at + size : at + size + 2]
        if not b"\r\n".startswith(ending):
            raise Malformed(f"a chunk that ends with {ending!r}")
        if len(ending) < 2:
            return b"".join(parts), False, len(data)
        at += size + 2


def _may_begin(rest: bytes) -> None:
    if re.fullmatch(rb"[0-9A-Fa-f]{0,64}([ \t]*;.*)?\r?", rest, re.DOTALL) is None:
        raise Malformed(f"a chunk size that is none: {rest!r}")


def _trailers(data: bytes, at: int, payload: bytes) -> tuple[bytes, bool, int]:
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            return payload, False, len(data)
        if line == at:
            return payload, True, line + 2
        if FIELD.match(data[at:line]) is None:
            raise Malformed(f"a trailer that is none: {data[at:line]!r}")
        at = line + 2


def response(data: bytes, at: int, closed: bool, bodiless: bool = False) -> Message | None:
    """The response at `at`; None where its head is not all there. Raises Malformed."""
    found = _head(data, at, STATUS)
    if found is None:
        return None
    lengths, codings = found.all(b"content-length"), found.all(b"transfer-encoding")
    if len(lengths) + len(codings) > 1:
        raise Malformed(f"two framings: {lengths} {codings}")
    if bodiless or found.status < 200 or found.status in (204, 304):
        return found._replace(complete=True)
    if codings:
        if codings != [b"chunked"]:
            raise Malformed(f"an unknown coding: {codings}")
        body, complete, end = chunked(data, found.end)
        return found._replace(body=body, complete=complete, end=end)
    if lengths:
        size = _length(lengths[0])
        body = data[found.end : found.end + size]
        return found._replace(body=body, complete=len(body) == size, end=found.end + len(body))
    if b"close" not in found.all(b"connection"):
        raise Malformed("an answer that ends with the connection and does not say so")
    return found._replace(body=data[found.end :], complete=closed, end=len(data))


def request(data: bytes) -> Message:
    """The one request that these bytes are. Raises Malformed where they are anything else."""
    found = _head(data, 0, REQUEST)
    if found is None:
        raise Malformed(f"half a head: {data[:200]!r}")
    names = [name for name, _ in found.headers]
    hop = _HOP.intersection(names)
    if hop:
        raise Malformed(f"headers of one hop reached an engine: {hop}")
    for once in (b"host", b"content-length", b"x-request-id"):
        if names.count(once) != 1:
            raise Malformed(f"{names.count(once)} of {once!r}")
    size = _length(found.all(b"content-length")[0])
    if len(data) - found.end != size:
        raise Malformed(f"a body of {len(data) - found.end} where {size} are announced")
    return found._replace(body=data[found.end :], complete=True, end=len(data))


def _length(value: bytes) -> int:
    if LENGTH.match(value) is None:
        raise Malformed(f"a length that is none: {value!r}")
    return int(value)
