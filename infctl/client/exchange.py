"""One HTTP exchange: what goes out, what came back and when. Pure but for the clock's values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from infctl.client.sse import EventScanner

if TYPE_CHECKING:
    from collections.abc import Callable

BODY_BYTES_MAX = 4 << 20
STREAM_BYTES_MAX = 1 << 30


class Exchange:
    """A request on its way. Times are perf_counter seconds; 0.0 means not yet.

    `sent_s` is when it was handed over, `wrote_s` when a connection took it. `on_done` is called
    exactly once, when the answer is complete or `error` says why it is not. `on_tokens` is told
    of events with content as they arrive.
    """

    __slots__ = (
        "body",
        "bytes_in",
        "context",
        "ended_s",
        "endpoint",
        "error",
        "finished",
        "first_s",
        "last_s",
        "on_done",
        "on_tokens",
        "payload",
        "scanner",
        "sent_s",
        "status",
        "touched_s",
        "wrote_s",
    )

    def __init__(
        self,
        payload: bytes,
        on_done: Callable[[Exchange], None],
        on_tokens: Callable[[int], None] | None = None,
        context: Any = None,
    ) -> None:
        self.payload = payload
        self.on_done = on_done
        self.on_tokens = on_tokens
        self.context = context
        self.sent_s = self.first_s = self.last_s = self.ended_s = 0.0
        self.touched_s = self.wrote_s = 0.0
        self.status = 0
        self.bytes_in = 0
        self.endpoint = ""
        self.error = ""
        self.finished = False
        self.body: list[bytes] = []
        self.scanner: EventScanner | None = None

    def headers_done(self, status: int, is_stream: bool) -> None:
        """The answer's head has arrived."""
        self.status = status
        if is_stream and status == 200:
            self.scanner = EventScanner()

    def feed(self, data: bytes, now_s: float) -> None:
        """Body bytes have arrived. Raises ValueError beyond the size limits."""
        self.bytes_in += len(data)
        scanner = self.scanner
        if scanner is None:
            if self.bytes_in > BODY_BYTES_MAX:
                raise ValueError(f"an answer larger than {BODY_BYTES_MAX >> 20} MiB")
            self.body.append(data)
            return
        if self.bytes_in > STREAM_BYTES_MAX:
            raise ValueError(f"a stream larger than {STREAM_BYTES_MAX >> 30} GiB")
        tokens = scanner.feed(data)
        if tokens > 0:
            self.last_s = now_s
            if not self.first_s:
                self.first_s = now_s
            if self.on_tokens is not None:
                self.on_tokens(tokens)

    def finish(self, now_s: float, error: str = "") -> None:
        """End the exchange once; a later call changes nothing."""
        if self.finished:
            return
        self.finished = True
        self.ended_s = now_s
        self.error = error or self._verdict()
        self.on_done(self)

    def _verdict(self) -> str:
        if self.status != 200:
            return f"HTTP {self.status}"
        if self.scanner is None:
            return ""
        if any("error" in event for event in self.scanner.last_objects()):
            return "error event in the stream"
        if not self.scanner.done:
            return "stream cut off"
        return ""

    def json(self) -> Any:
        """The whole body decoded; None if it isn't JSON."""
        try:
            return msgspec.json.decode(b"".join(self.body))
        except msgspec.DecodeError:
            return None

    def usage(self) -> dict[str, Any]:
        """The engine's usage; empty where it sent none."""
        objects = self.scanner.last_objects() if self.scanner else [self.json()]
        for item in objects:
            usage = item.get("usage") if isinstance(item, dict) else None
            if isinstance(usage, dict):
                return usage
        return {}
