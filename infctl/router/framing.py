"""Chunked framing and server-sent events, piece by piece: what of a stream is whole.

llhttp has checked the framing before bytes come here, so it is followed, not judged.
"""

from __future__ import annotations

LAST_CHUNK = b"0\r\n\r\n"

_EVENT_MAX = 8 << 20


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk; nothing for nothing, for an empty chunk would end the body."""
    return b"%x\r\n%s\r\n" % (len(payload), payload) if payload else b""


class Unchunk:
    """Undoes chunked framing incrementally. `done` after the last chunk and its trailers."""

    __slots__ = ("_ending", "_left", "_line", "done")

    def __init__(self) -> None:
        self.done = False
        self._ending = False
        self._line = b""
        self._left = 0

    @property
    def between(self) -> bool:
        """Whether the bytes so far end where a chunk ends."""
        return not self._line and not self._left and not self._ending

    def feed(self, data: bytes) -> bytes:
        """The payload of more bytes."""
        if self._line:
            data, self._line = self._line + data, b""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._left:
                end = min(at + self._left, size)
                # The two bytes that end a chunk are counted with it, and are no payload.
                parts.append(data[at : min(end, at + max(self._left - 2, 0))])
                self._left -= end - at
                at = end
                continue
            line = data.find(b"\r\n", at)
            if line < 0:
                self._line = data[at:]
                break
            if self._ending:
                self.done, self._ending = line == at, line != at
                at = line + 2
                continue
            length = int(data[at:line].partition(b";")[0], 16)
            at = line + 2
            self._left = length + 2 if length else 0
            self._ending = not length
        return b"".join(parts)


class Events:
    """Whole server-sent events of a payload that comes in any pieces."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = b""

    def feed(self, payload: bytes) -> bytes:
        """The events that are complete now, as they came. What is no event after 8 MiB is passed
        on as if it were: nobody shall be made to hold a stream without end."""
        if self.open:
            payload = self.open + payload
        end = max(_after(payload, b"\n\n"), _after(payload, b"\r\n\r\n"))
        if not end and len(payload) > _EVENT_MAX:
            end = len(payload)
        self.open = payload[end:]
        return payload[:end]


def _after(data: bytes, mark: bytes) -> int:
    """Where the last of these marks ends; 0 if there is none."""
    at = data.rfind(mark)
    return at + len(mark) if at >= 0 else 0
