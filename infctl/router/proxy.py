"""One request on its way: to an endpoint, perhaps to another, and the answer back.

Nothing reaches the client before the endpoint's first body byte, so that until then another
endpoint may take over. From then on bytes pass through as they came, chunked framing included.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from infctl.core import events as ev
from infctl.router.upstream import own_fault
from infctl.router.wire import answer, dechunk, error_body, request_head, response_head

if TYPE_CHECKING:
    from infctl.core.commands import Dispatch, Reject
    from infctl.core.fleet import Endpoint
    from infctl.core.request import Request
    from infctl.router.driver import Router
    from infctl.router.server import Connection
    from infctl.router.upstream import Link
    from infctl.router.wire import Head, ResponseHead

_RETRYABLE = frozenset((500, 502, 503, 504))
_TAIL = 4096
_FRAMING = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")


class Exchange:
    """A client's request and its answer; the receiver of the endpoint's bytes."""

    __slots__ = (
        "_held", "_legacy", "_link", "_paused", "_resent", "_response", "_scanned", "arrived",
        "attempt", "body", "connection", "done", "endpoint", "events", "expected_cached",
        "first_byte", "head", "heard", "request", "request_id", "router", "sent_bytes", "slot",
        "status", "tail", "usage",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        connection: Connection,
        head: Head,
        body: bytes | bytearray,
        request: Request,
        request_id: bytes,
    ) -> None:
        self.router = router
        self.connection = connection
        self.head = head
        self.body = body
        self.request = request
        self.request_id = request_id
        self.arrived = self.heard = router.now()
        self.first_byte = 0.0
        self.slot = -1
        self.attempt = 0
        self.endpoint: Endpoint | None = None
        self.expected_cached = 0
        self.status = 0
        self.sent_bytes = 0
        self.events = 0
        self.tail = b""
        self.usage: ev.Usage | None = None
        self.done = False
        self._link: Link | None = None
        self._held = b""
        self._response: ResponseHead | None = None
        self._legacy: list[bytes] | None = None
        self._resent = False
        self._paused = False
        self._scanned = 0

    # --- commands ---------------------------------------------------------------------------------

    def dispatch(self, command: Dispatch) -> None:
        """Send the request to the endpoint the Director chose."""
        endpoint = self.router.director.fleet.slots[command.slot]
        pool = self.router.pools.get(command.slot)
        if endpoint is None or pool is None:
            self.router.leg_failed(self, "the endpoint is gone", blame=False)
            return
        self.slot, self.endpoint, self.attempt = command.slot, endpoint, command.attempt
        self.expected_cached = command.cached_tokens
        self._resent = False
        link = pool.take()
        if link is not None:
            self._send(link)
        else:
            self.router.spawn(self._connect(command.attempt))

    async def _connect(self, attempt: int) -> None:
        pool = self.router.pools.get(self.slot)
        try:
            if pool is None:
                raise ConnectionError("the endpoint is gone")
            link = await pool.connect(self.router.limits.connect_s)
        except OSError as error:
            if not self.done and self.attempt == attempt:
                reason = "timed out" if isinstance(error, TimeoutError) else error
                self.router.connect_failed(self.slot, error)
                blame = not own_fault(error)
                self.router.leg_failed(self, f"cannot connect: {reason}", blame=blame)
            return
        if self.done or self.attempt != attempt:
            pool.put_back(link)
        else:
            self._send(link)

    def _send(self, link: Link) -> None:
        self._link = link
        self.heard = self.router.now()
        self._response, self._held, self._legacy, self.sent_bytes = None, b"", None, 0
        netloc = link.pool.netloc
        head = request_head(
            self.head.method, self.head.url, netloc, self.head.headers, self.request_id,
            len(self.body),
        )  # fmt: skip
        link.send(self, head, self.body)

    def reject(self, command: Reject) -> None:
        """Answer with an error of our own."""
        self.status = command.status
        body = error_body(command.status, command.message)
        close = not self.connection.keeps(self.head)
        data = answer(
            command.status,
            body,
            request_id=self.request_id,
            retry_after_s=command.retry_after_s,
            close=close,
        )
        self.connection.write(data)
        self._close(ok=False)
        self.connection.finish(not close)

    def abort_leg(self) -> None:
        """Let go of the endpoint; it sees the connection drop and stops generating."""
        link, self._link = self._link, None
        if link is not None:
            link.abort()

    # --- the endpoint's answer --------------------------------------------------------------------

    def on_head(self, response: ResponseHead) -> None:
        self.heard = self.router.now()
        if response.status in _RETRYABLE:
            self.abort_leg()
            self.router.leg_failed(self, f"answered {response.status}")
            return
        self._response = response
        self.status = response.status
        close = not self.connection.keeps(self.head)
        if response.length is not None:
            framing = b"content-length: %d\r\n" % response.length
        elif self.head.version == "1.0":
            framing, self._legacy = b"", []
            return
        elif response.chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing, close = b"", True
            self.head.pipelined = True
        name = self.endpoint.id.encode() if self.endpoint else b""
        self._held = response_head(response, self.request_id, name, framing, close)

    def on_data(self, data: bytes) -> None:
        self.heard = self.router.now()
        if self._legacy is not None:
            self._keep_legacy(data)
            return
        if not self.first_byte and data:
            self.first_byte = self.heard
            if self._response is not None and self._response.is_stream:
                self.router.handle(ev.FirstByte(self.request.id))
        size = len(data)
        self.sent_bytes += size
        self.events += data.count(b"data: ")
        self.tail = data if size >= _TAIL else (self.tail + data)[-_TAIL:]
        if self._held:
            data = self._held + data
            self._held = b""
        self.connection.write(data)

    def _keep_legacy(self, data: bytes) -> None:
        kept = self._legacy
        if kept is not None:
            kept.append(data)
            self.sent_bytes += len(data)
            if self.sent_bytes > self.router.limits.body_mib_max << 20:
                self.abort_leg()
                reason = "the answer is too large to buffer for HTTP/1.0"
                self.router.leg_failed(self, reason, blame=False)

    def on_end(self) -> None:
        self._link = None
        if self._legacy is not None:
            self._send_legacy(b"".join(self._legacy))
        elif self._held:
            self.connection.write(self._held)
        ok = 200 <= self.status < 300
        if ok:
            self.usage = parse_usage(self.tail)
            self.router.lives.answered(self.slot)
        elif self.status >= 500:
            self.router.lives.failed(self.slot)
        self._close(ok)
        self.connection.finish(self.head.keep_alive)

    def _send_legacy(self, body: bytes) -> None:
        response = self._response
        if response is None:
            return
        if response.chunked:
            body = dechunk(body)
        self.tail = body[-_TAIL:]
        name = self.endpoint.id.encode() if self.endpoint else b""
        framing = b"content-length: %d\r\n" % len(body)
        close = not self.connection.keeps(self.head)
        self.connection.write(response_head(response, self.request_id, name, framing, close) + body)

    def on_failure(self, reason: str, clean: bool) -> None:
        link = self._link
        if clean and link is not None and link.reused and not self._resent:
            # An idle connection may close just as it is used; that says nothing of the endpoint.
            self._resent = True
            self._link = None
            self.router.spawn(self._connect(self.attempt))
            return
        self.abort_leg()
        self.router.leg_failed(self, reason)

    def cut(self, reason: str) -> None:
        """The endpoint failed after its first byte: end the stream with an error event where its
        framing allows one, or break the connection; never let it look complete."""
        response = self._response
        whole = self.tail.endswith((b"\n\n\r\n", b"\n\n"))
        if response is not None and response.is_stream and response.chunked and whole:
            event = b"data: %s\n\n" % error_body(502, f"stream broken off: {reason}")
            self.connection.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
            self._close(ok=False)
            self.connection.finish(False)
            return
        self._close(ok=False)
        self.connection.abort()

    # --- the client -------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if not self.done:
            self.status = self.status or 499
            self.router.handle(ev.RequestCancelled(self.request.id))
            self._close(ok=None)

    def pause(self) -> None:
        if self._link is not None and not self._paused:
            self._paused, self.heard = True, self.router.now()
            self._link.transport.pause_reading()

    def resume(self) -> None:
        if self._link is not None and self._paused:
            self._link.transport.resume_reading()
            self.heard = self.router.now()
        self._paused = False

    # --- time and the end -------------------------------------------------------------------------

    def overdue(self, now: float) -> str | None:
        """Why this request has waited too long for its endpoint, or None."""
        if self._link is None or self._paused:
            return None
        limits = self.router.limits
        limit, what = (
            (limits.stream_idle_s, "fell silent")
            if self.first_byte
            else (limits.first_byte_s, "sent no first byte")
        )
        return f"the endpoint {what} for {limit:g} s" if now - self.heard > limit else None

    def client_stalled(self, now: float) -> bool:
        """Whether the client has taken nothing for too long while its endpoint is held up."""
        return self._paused and now - self.heard > self.router.limits.stream_idle_s

    def new_events(self) -> int:
        """SSE events since the last call."""
        new, self._scanned = self.events - self._scanned, self.events
        return new

    def _close(self, ok: bool | None) -> None:
        """The request is over; `ok` None when its client left."""
        self.done = True
        if ok is not None:
            self.router.handle(ev.RequestFinished(self.request.id, ok, self.usage))
        self.router.closed(self)


def parse_usage(tail: bytes) -> ev.Usage | None:
    """Token counts from the last `usage` object of an answer's tail, None if there is none.

    An unescaped `"usage":` cannot occur inside a JSON string, so it is a key. Chunk framing may
    fall anywhere in it.
    """
    found = _last_usage(tail) or _last_usage(_FRAMING.sub(b"", tail))
    if not found:
        return None
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details")
    return ev.Usage(
        prompt_tokens=_count(found.get("prompt_tokens", found.get("input_tokens"))),
        completion_tokens=_count(found.get("completion_tokens", found.get("output_tokens"))),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )


def _last_usage(tail: bytes) -> dict[str, Any] | None:
    at = tail.rfind(b'"usage":')
    if at < 0:
        return None
    try:
        found, _ = _decode(tail[at + 8 :].decode("latin-1").lstrip())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else None


_decode = json.JSONDecoder().raw_decode
