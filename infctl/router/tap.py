"""A stream, read while it passes: what the router asked for is taken out again, what was said is
kept so that another engine can go on, and an engine that gives up is noticed.

Only whole events pass, so that whatever happens to the engine, the client stands between events.
In the common case a read is one or more whole events with nothing to take out, and the bytes pass
as they came.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.router.framing import LAST_CHUNK, Events, Unchunk, chunk

if TYPE_CHECKING:
    from infctl.router.continuation import Joint

_EVENT_END = b"\n\n\r\n"
_WHOLE = (_EVENT_END, _EVENT_END + LAST_CHUNK)
_TAIL = 512
"""How far from its end an event says that it is the last: behind it is at most `[DONE]`."""

_IDS = b',"token_ids":['
_ALL_IDS = re.compile(rb',"(?:prompt_)?token_ids":(?:\[[^\]]*\]|null)')
_NO_CHOICES = b'"choices":[]'
_ERROR = b'"code":5'
_ABORT = b':"abort"'


class Tap:
    """One endpoint's chunked event stream on its way to the client.

    `ids` and `usage`: the router asked for token ids and for usage, the client did not. `joint`:
    this endpoint goes on where another one failed. `pieces` are the bytes as they came, None when
    they are not kept. `failure` is what an event said went wrong in the engine; nothing passes
    from there on.
    """

    __slots__ = (
        "_chunks", "_clean", "_events", "_ids", "_plain", "_seen", "_usage", "failure", "joint",
        "pieces",
    )  # fmt: skip

    def __init__(self, ids: bool = False, usage: bool = False, joint: Joint | None = None) -> None:
        self.pieces: list[bytes] | None = []
        self.failure = ""
        self.joint = joint
        self._ids = ids
        self._usage = usage
        self._seen = False
        self._plain = False
        self._clean = True
        self._chunks = Unchunk()
        self._events = Events()

    def feed(self, data: bytes) -> bytes:
        """More bytes from the endpoint; what of them is to go to the client. Raises Unsafe when an
        endpoint that is to go on sends what is no event."""
        if self.pieces is not None:
            self.pieces.append(data)
        if self._clean and data.endswith(_WHOLE) and _aligned(data) and not _ends(data):
            if self.joint is None and not (self._ids and self._tells(data)):
                return data
            stripped = _without_ids(data) if self._plain else None
            if stripped is not None:
                return stripped
        return self._follow(data)

    def _tells(self, data: bytes) -> bool:
        """Whether this engine gives token ids, or may: its first event tells, and has the
        prompt's too, if it lies in one chunk."""
        if self._seen:
            return True
        first = data[: data.find(b"\n\n")]
        if first.count(b"\r") == 1:
            self._look(first)
        return self._ids

    def _look(self, first: bytes) -> None:
        if b"data:" in first:  # a comment tells nothing
            self._seen = True
            self._ids = b'token_ids":[' in first

    def _follow(self, data: bytes) -> bytes:
        chunks, events, over = self._chunks, self._events, self._chunks.done
        if over:
            return b""
        whole, data = _whole_chunks(data) if self._clean else (b"", data)
        if data:
            whole += events.feed(chunks.feed(data))
        if chunks.done:
            whole, events.open = whole + events.open, b""
        self._clean = chunks.between and not events.open
        out = chunk(self._filter(whole)) if whole else b""
        return out + LAST_CHUNK if chunks.done and not self.failure else out

    def _filter(self, whole: bytes) -> bytes:
        if _ends(whole):
            whole = self._end(whole)
        if self.joint is not None:
            return self.joint.join(whole)
        if not self._ids or not whole:
            return whole
        if self._plain:
            return _strip_ids(whole)
        self._look(whole[: whole.find(b"\n\n")])
        self._plain = self._seen
        return _ALL_IDS.sub(b"", whole)

    def _end(self, whole: bytes) -> bytes:
        """Take out the usage nobody asked for, and all from where the engine gave up."""
        at = whole.rfind(_NO_CHOICES)
        if self._usage and at >= 0 and b'"usage":{' in whole[at:]:
            start, end = whole.rfind(b"data: ", 0, at), whole.find(b"\n\n", at) + 2
            whole = whole[:start] + whole[end:]
        at = max(whole.rfind(_ERROR), whole.rfind(_ABORT))
        start = whole.rfind(b"data: ", 0, at) if at >= 0 else -1
        if start >= 0:
            self.failure = given_up(whole[start + 6 : whole.find(b"\n", start)])
        return whole[:start] if self.failure else whole


def _aligned(data: bytes) -> bool:
    """Whether no chunk in the tail ends within an event, where its framing may hide a mark. A
    chunk has two line ends of its own, JSON has none; the first one's size may lie before."""
    tail = data[-_TAIL:]
    extra = tail.count(b"\r") - 2 * tail.count(_EVENT_END)
    return extra <= (2 if data.endswith(LAST_CHUNK) else 0)


def _ends(data: bytes) -> bool:
    """Whether this may hold the last event of a stream: usage, an error, or an abort."""
    return (
        data.find(_NO_CHOICES, -_TAIL) >= 0
        or data.find(_ERROR, -_TAIL) >= 0
        or data.find(_ABORT, -_TAIL) >= 0
    )


def _whole_chunks(data: bytes) -> tuple[bytes, bytes]:
    """The payload of the chunks that end where an event ends, if every chunk does, and the bytes
    behind them. The common burst: one event a chunk, undone at a third of the price."""
    parts = data.split(_EVENT_END)
    rest = parts.pop()
    payload = b"\n\n".join([part[part.find(b"\r\n") + 2 :] for part in parts])
    if not parts or b"\r" in payload:
        return b"", data
    return payload + b"\n\n", rest


def _strip_ids(events: bytes) -> bytes:
    """Events without their token ids; those of the prompt come in the first event alone."""
    first, *parts = events.split(_IDS)
    return first + b"".join([part[part.find(b"]") + 1 :] for part in parts])


def _without_ids(data: bytes) -> bytes | None:
    """One chunk of one event without its token ids, or None if it is anything else."""
    at, head = data.rfind(_IDS), data.find(b"\r\n", 0, 12)
    if at < 0 or head < 0 or data.find(b"\n\n", head) != len(data) - 4:
        return None
    if data[:head] != b"%x" % (len(data) - head - 4):
        return None
    rest = data.find(b"]", at) + 1
    return b"%x\r\n%s%s" % (len(data) - head - 4 - (rest - at), data[head + 2 : at], data[rest:])


def given_up(event: bytes) -> str:
    """What an event says went wrong in the engine; empty when nothing did, or when it was the
    client's mistake."""
    try:
        found: Any = msgspec.json.decode(event)
    except msgspec.DecodeError:
        return ""
    if not isinstance(found, dict):
        return ""
    error = found.get("error")
    if isinstance(error, dict):
        code = str(error.get("code") or "")
        return f"the engine reports: {error.get('message')}"[:500] if code.startswith("5") else ""
    choices = found.get("choices")
    listed = choices if isinstance(choices, list) else ()
    aborted = any(isinstance(c, dict) and c.get("finish_reason") == "abort" for c in listed)
    return "the engine aborted the request" if aborted else ""
