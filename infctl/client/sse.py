"""Counting server-sent events without decoding them. Pure.

Most bytes of a run pass through here, so only the first events (until one has content) and the
last ones (usage, errors) are decoded; between them events are counted as line starts `data:`.
"""

from __future__ import annotations

from typing import Any

import msgspec

_TAIL_BYTES = 8192
_EVENT_BYTES_MAX = 8 << 20
_decode = msgspec.json.Decoder().decode


class EventScanner:
    """Follows one stream, split anywhere.

    `events` counts complete `data:` events, `content` the ones that carried a choice. `started`
    is set by the first event with content. `feed` says whether the bytes held content.
    """

    __slots__ = ("_carry", "_tail", "done", "events", "extra", "started")

    def __init__(self) -> None:
        self.events = 0
        self.extra = 0
        self.started = False
        self.done = False
        self._carry = b""
        self._tail = b""

    @property
    def content(self) -> int:
        """Events that carried tokens: all but the roles, the usage and the end mark."""
        return max(0, self.events - self.extra)

    def feed(self, data: bytes) -> int:
        """Take in bytes and return how many events with content they completed."""
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        end = data.rfind(b"\n\n") + 2
        if end == 1 or end != len(data):
            data = self._keep_rest(data, end)
        if not data:
            return 0
        count = data.count(b"\ndata:") + data.startswith(b"data:")
        self.events += count
        extra = self._extra(data, count)
        self.extra += extra
        self._tail = data if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        return count - extra

    def _keep_rest(self, data: bytes, end: int) -> bytes:
        if end == 1:
            self._carry, data = data, b""
        else:
            self._carry, data = data[end:], data[:end]
        if len(self._carry) > _EVENT_BYTES_MAX:
            raise ValueError(f"an event larger than {_EVENT_BYTES_MAX >> 20} MiB")
        return data

    def _extra(self, data: bytes, count: int) -> int:
        """How many of the events carry no content (role, usage, end mark, error)."""
        if not self.started:
            kinds = [_has_content(e) for e in _payloads(data)]
            self.started = any(kinds)
            self.done = self.done or b"data: [DONE]" in data
            return kinds.count(False)
        extra = 0
        if data.find(b"data: [DONE]", max(0, len(data) - 32)) >= 0:
            self.done = True
            extra = 1
        if extra < count and (b'"choices":[]' in data or b'"choices": []' in data):
            extra += 1
        return extra

    def last_objects(self) -> list[dict[str, Any]]:
        """The last decodable events, newest first."""
        found = []
        for payload in reversed(list(_payloads(self._tail))):
            value = _object(payload)
            if value is not None:
                found.append(value)
        return found


def _payloads(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _object(payload: bytes) -> dict[str, Any] | None:
    if not payload.startswith(b"{"):
        return None
    try:
        value = _decode(payload)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def _has_content(payload: bytes) -> bool:
    """A choice with anything but a role. A completion's text may be empty: it is a token still."""
    event = _object(payload)
    choices = event.get("choices") if event else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    if not isinstance(delta, dict):
        return True
    return any(value for key, value in delta.items() if key != "role")
