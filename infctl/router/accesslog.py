"""The router's log: one line per request, and one per event."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.router.proxy import Exchange

_LINES_MAX = 10_000


class RequestLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the log says of one request; None where it does not apply."""

    id: str
    path: str
    model: str
    status: int
    tenant: str | None = None
    endpoint: str | None = None
    attempt: int | None = None
    duration_ms: float = 0.0
    ttft_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    expected_cached_tokens: int | None = None
    output_tokens: int | None = None
    priority: str | None = None
    queue_ms: float | None = None
    shed: str | None = None

    def text(self) -> str:
        """Fields as `name=value`; only the model's name comes from outside."""
        line = (
            f"id={self.id} path={self.path} model={_plain(self.model)} status={self.status} "
            f"endpoint={self.endpoint} attempt={self.attempt} duration_ms={self.duration_ms}"
        )
        if self.tenant is not None:
            line += f" tenant={self.tenant}"
        if self.queue_ms is not None:
            line += f" priority={self.priority} queue_ms={self.queue_ms}"
            if self.shed is not None:
                line += f" shed={self.shed}"
        if self.ttft_ms is not None:
            line += f" ttft_ms={self.ttft_ms}"
        if self.prompt_tokens is not None:
            line += (
                f" prompt_tokens={self.prompt_tokens} cached_tokens={self.cached_tokens} "
                f"expected_cached_tokens={self.expected_cached_tokens} "
                f"output_tokens={self.output_tokens}"
            )
        return line


class Log:
    """One line per event, as text or JSON, buffered between flushes. Requests are made into lines
    when they are written: many at once cost a third of one here and one there."""

    def __init__(self, fmt: str, out: TextIO, wall: Callable[[], float]) -> None:
        self._json = fmt == "json"
        self._out = out
        self._wall = wall
        self._lines: list[str | tuple[float, RequestLine]] = []
        self._dropped = 0

    def request(self, line: RequestLine) -> None:
        """Note one request."""
        self._keep((self._wall(), line))

    def _line(self, stamp: float, line: RequestLine) -> str:
        if self._json:
            fields = msgspec.json.encode(line)[1:].decode()
            return f'{{"ts":{stamp:.3f},"event":"request",{fields}'
        return f"{stamp:.3f} request {line.text()}"

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        """Note one event."""
        stamp = self._wall()
        if self._json:
            row = {"ts": round(stamp, 3), "event": kind} | fields
            self._keep(msgspec.json.encode(row).decode())
        else:
            pairs = [f"{k}={_plain(v)}" for k, v in fields.items() if v is not None]
            self._keep(f"{stamp:.3f} {kind} {' '.join(pairs)}")

    def _keep(self, line: str | tuple[float, RequestLine]) -> None:
        if len(self._lines) < _LINES_MAX:
            self._lines.append(line)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Write what has gathered. A full disk or closed pipe must not stop the router."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._lines.pop()
            self.event("log_overflow", {"lines_dropped": dropped + 1})
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        text = "\n".join([x if isinstance(x, str) else self._line(*x) for x in lines]) + "\n"
        with suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()


def _plain(value: Any) -> Any:
    """As it is, but quoted where a log's reader could mistake it for more than one value."""
    if type(value) is not str or (value.isascii() and value.isprintable() and " " not in value):
        return value
    return msgspec.json.encode(value).decode()


def request_line(exchange: Exchange, duration: float) -> RequestLine:
    """What the log says of a request that took `duration` seconds."""
    usage = exchange.usage
    ttft = exchange.first_byte - exchange.arrived if exchange.first_byte else None
    return RequestLine(
        id=exchange.request_id.decode("latin-1"),
        path=exchange.head.url.partition(b"?")[0].decode("latin-1"),
        model=exchange.request.model,
        status=exchange.status,
        tenant=exchange.request.tenant or None,
        endpoint=exchange.endpoint.id if exchange.endpoint else None,
        attempt=exchange.attempt or None,
        duration_ms=round(duration * 1000, 1),
        ttft_ms=round(ttft * 1000, 1) if ttft is not None else None,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        expected_cached_tokens=exchange.expected_cached if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
    )
