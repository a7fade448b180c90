"""One request on its way: to an endpoint, perhaps to another, and the answer back.

Nothing reaches the client before the endpoint's first body byte, so that until then another
endpoint may take over. From then on bytes pass through as they came, chunked framing included;
when an endpoint fails in the middle of a stream, another one goes on from what was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.core import events as ev
from infctl.core.commands import Reject
from infctl.router.continuation import Unsafe
from infctl.router.framing import LAST_CHUNK, chunk
from infctl.router.legacy import Legacy
from infctl.router.resume import Resume
from infctl.router.tap import Tap
from infctl.router.usage import parse_usage, usage_of
from infctl.router.wire import answer, error_body, request_head, response_head

if TYPE_CHECKING:
    from infctl.core.commands import Dispatch, Shed
    from infctl.core.fleet import Endpoint
    from infctl.core.request import Request
    from infctl.router.driver import Router
    from infctl.router.intake import Asked
    from infctl.router.server import Connection
    from infctl.router.upstream import Link, Pool
    from infctl.router.wire import Head, ResponseHead

_RETRYABLE = frozenset((500, 502, 503, 504))
_TAIL = 4096


class Exchange:
    """A client's request and its answer; the receiver of the endpoint's bytes."""

    __slots__ = (
        "_asked", "_held", "_kept", "_legacy", "_link", "_paused", "_resent", "_response",
        "_resume", "_scanned", "_tap", "arrived", "attempt", "begun", "body", "connection", "done",
        "endpoint", "events", "expected_cached", "first_byte", "head", "heard", "queue_ms",
        "request", "request_id", "router", "shed", "slot", "started", "status", "tail", "usage",
        "why_not",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        connection: Connection,
        head: Head,
        body: bytes | bytearray,
        request: Request,
        request_id: bytes,
        asked: Asked,
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
        self.queue_ms = 0.0
        self.shed: Shed | None = None
        self.status = 0
        self.events = 0
        self.tail = b""
        self.usage: ev.Usage | None = None
        self.started = False
        self.done = False
        self._asked = asked
        self.begun = False
        self._tap: Tap | None = None
        self._resume: Resume | None = None
        self._kept = 0
        self.why_not = ""
        self._link: Link | None = None
        self._held = b""
        self._response: ResponseHead | None = None
        self._legacy: Legacy | None = None
        self._resent = False
        self._paused = False
        self._scanned = 0

    # --- commands ---------------------------------------------------------------------------------

    def dispatch(self, command: Dispatch) -> None:
        """Send the request to the endpoint the Director chose."""
        endpoint = self.router.director.fleet.slots[command.slot]
        pool = self.router.pools.get(command.slot)
        if endpoint is None or pool is None:
            self.router.leg_failed(self, "the endpoint is gone")
            return
        self.slot, self.endpoint, self.attempt = command.slot, endpoint, command.attempt
        self.expected_cached = command.cached_tokens
        self.queue_ms += command.queue_ms
        self._resent = False
        if not self.started:
            self.first_byte = 0.0
        link = None if self.started else pool.take()
        if link is not None:
            self._send(link, self.body)
        else:
            self.router.spawn(self._connect(command.attempt))

    async def _connect(self, attempt: int) -> None:
        pool = self.router.pools.get(self.slot)
        try:
            if pool is None:
                raise ConnectionError("the endpoint is gone")
            body = await self._rest(pool) if self.started else self.body
            link = (pool.take() if self.started else None) or await pool.connect(
                self.router.limits.connect_s
            )
        except (OSError, Unsafe) as error:
            if self._wants(attempt):
                self._not_sent(error, attempt)
            return
        if self._wants(attempt):
            self._send(link, body)
        else:
            pool.put_back(link)

    def _wants(self, attempt: int) -> bool:
        """Whether this attempt still goes on: not over, not followed by another, not waiting for
        one."""
        return not self.done and self.attempt == attempt and self.slot >= 0

    def _not_sent(self, error: Exception, attempt: int) -> None:
        if isinstance(error, Unsafe):
            self.why_not = str(error)
            self.router.leg_failed(self, "it was to go on with an answer")
            return
        reason = "timed out" if isinstance(error, TimeoutError) else error
        self.router.connect_failed(self.slot)
        if self._wants(attempt):  # ejecting the endpoint may have failed this leg already
            self.router.leg_failed(self, f"cannot connect: {reason}")

    async def _rest(self, pool: Pool) -> bytes:
        """The body of the request for the rest of the answer. Raises Unsafe."""
        if self._resume is None or self.endpoint is None:
            raise Unsafe("nothing was kept")
        return await self._resume.body(pool, self.router.capabilities(self.endpoint.engine))

    def _send(self, link: Link, body: bytes | bytearray) -> None:
        self._link = link
        self.heard = now = self.router.now()
        self.router.stalls.heard.setdefault(self.slot, now)
        self._response, self._held, self._legacy = None, b"", None
        if not self.started:
            self._untap()
        self.begun = False
        added = b""
        if self._asked.path and not self.started and self.endpoint is not None:
            added = self.router.added(self.endpoint.engine, self._asked)
        head = request_head(
            self.head.method, self.head.url, link.pool.netloc, self.head.headers, self.request_id,
            len(body) + len(added),
        )  # fmt: skip
        if added:
            at = body.index(b"{") + 1
            link.send(self, head + body[:at] + added, memoryview(body)[at:])
        else:
            link.send(self, head, body)
        self._paused = False
        if self.connection.full:  # since an earlier answer, or an earlier leg of this one
            self.pause()

    def reject(self, command: Reject) -> None:
        """Answer with an error of our own, or end with one what has begun."""
        self.shed = command.shed
        self.queue_ms += command.queue_ms
        if self.started:
            self.cut(command.message)
            return
        self.status = command.status
        close = not self.connection.keeps(self.head)
        data = answer(
            command.status, error_body(command.status, command.message),
            request_id=self.request_id, retry_after_s=command.retry_after_s, close=close,
        )  # fmt: skip
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
        stream = response.is_stream and response.chunked
        if response.status in _RETRYABLE or (self.started and not stream):
            self.abort_leg()
            self.router.leg_failed(self, f"answered {response.status}")
            return
        self._response = response
        if self._asked.path and stream:
            self._tap_stream()
        if self.started:
            return
        self.status = response.status
        close = not self.connection.keeps(self.head)
        if response.length is not None:
            framing = b"content-length: %d\r\n" % response.length
        elif self.head.version == "1.0":
            self._legacy = Legacy(response, self.router.limits.body_mib_max << 20)
            return
        elif response.chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing, close = b"", True
            self.head.pipelined = True
        self._held = response_head(response, self.request_id, self._name(), framing, close)

    def _name(self) -> bytes:
        return self.endpoint.id.encode() if self.endpoint else b""

    def _tap_stream(self) -> None:
        asked, router = self._asked, self.router
        if self._resume is not None:
            self._tap = Tap(joint=self._resume.joint())
            return
        can = router.capabilities(self.endpoint.engine if self.endpoint else "")
        self._tap = Tap(ids=asked.adds_ids(can), usage=asked.adds_usage(can))
        self._keep(len(self.body))

    def on_data(self, data: bytes) -> None:
        self.heard = self.router.stalls.heard[self.slot] = self.router.now()
        if self._legacy is not None:
            self._keep_legacy(data)
            return
        if not self.begun and data:
            self._begin()
        size = len(data)
        self.events += data.count(b"data: ")
        self.tail = data if size >= _TAIL else (self.tail + data)[-_TAIL:]
        if self._tap is not None:
            self._tapped(self._tap, data)
            return
        if self._held:
            data = self._held + data
            self._held = b""
        self.started = True
        self.connection.write(data)

    def _begin(self) -> None:
        """The first bytes of a leg's answer."""
        self.begun = True
        self.first_byte = self.first_byte or self.heard
        if self._response is not None and self._response.is_stream:
            self.router.handle(ev.FirstByte(self.request.id))

    def _tapped(self, tap: Tap, data: bytes) -> None:
        try:
            passed = tap.feed(data)
        except Unsafe as error:
            self.why_not = str(error)
            self.on_failure("it sent something else than a stream's events", False)
            return
        if self._kept:
            self._keep(len(data))
        if passed:
            if self._held:
                passed, self._held = self._held + passed, b""
            self.started = True
            self.connection.write(passed)
        if tap.failure:
            self.on_failure(tap.failure, False)

    def _keep(self, size: int) -> None:
        """Count what is kept for going on elsewhere; beyond the router's budget, let go of it."""
        self._kept += size
        if not self.router.keep(size):
            self._forget()
            self.why_not = "too much was kept already for other streams"
            self.router.telemetry.not_kept += 1

    def _untap(self) -> None:
        """Another leg begins the answer anew: nothing of the one before may shape it."""
        self.router.keep(-self._kept)
        self._kept, self._tap = 0, None

    def _forget(self) -> None:
        self.router.keep(-self._kept)
        self._kept = 0
        if self._tap is not None:
            self._tap.pieces = None
        if self.started:
            self.body = b""

    def _keep_legacy(self, data: bytes) -> None:
        kept = self._legacy
        if kept is not None and not kept.add(data):
            self.on_failure("the answer is too large to buffer for HTTP/1.0", False)

    def on_end(self) -> None:
        self._link = None
        if self._legacy is not None:
            self.tail = self._legacy.body()[-_TAIL:]
            close = not self.connection.keeps(self.head)
            self.connection.write(self._legacy.answer(self.request_id, self._name(), close))
        elif self._held:
            self.connection.write(self._held)
        ok = 200 <= self.status < 300
        joint = self._tap.joint if self._tap is not None else None
        if joint is not None and joint.usage:
            self.usage = usage_of(joint.usage)
        elif ok:
            self.usage = parse_usage(self.tail)
        self._close(ok)
        self.connection.finish(self.head.keep_alive)

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

    def resumable(self) -> bool:
        """Whether another endpoint may go on with what the client has; finishes the answer at
        once where nothing but its ending is missing."""
        tap = self._tap
        if tap is None or tap.pieces is None:
            self.why_not = self.why_not or "this kind of answer cannot be continued"
            return False
        try:
            if self._resume is None:
                self._resume = Resume(self._asked.path, self.body)
            before = self._resume.sofar.tokens
            self._resume.take(tap.pieces)
        except Unsafe as error:
            self.why_not = str(error)
            return False
        tap.pieces.clear()
        self.request.extra_tokens += self._resume.sofar.tokens - before
        if self._resume.complete:
            self.connection.write(chunk(self._resume.ending()) + LAST_CHUNK)
            self._close(ok=True)
            self.connection.finish(self.head.keep_alive)
            return False
        return True

    def cut(self, reason: str) -> None:
        """The endpoint failed after its first byte: end the stream with an error event where its
        framing allows one, or break the connection; never let it look complete."""
        response = self._response
        if self.why_not:
            reason = f"{reason}; not continued: {self.why_not}"
        stream = response is not None and response.is_stream and response.chunked
        if response is not None and self._tap is None:
            stream = stream and self.tail.endswith(b"\n\n\r\n") and response.may_end()
        if stream or self._resume is not None:
            event = b"data: %s\n\n" % error_body(502, f"stream broken off: {reason}")
            self.connection.write(chunk(event) + LAST_CHUNK)
            self._close(ok=False)
            self.connection.finish(False)
            return
        self._close(ok=False)
        self.connection.abort()

    def end(self, reason: str) -> None:
        """The router stops: a 503 where nothing has been sent yet, a broken stream elsewhere."""
        if self.done:
            return
        if self.started:
            self.cut(reason)
        else:
            self.abort_leg()
            self.reject(Reject(self.request.id, 503, reason, 1))

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
            if self.begun
            else (limits.first_byte_s, "sent no first byte")
        )
        return f"the endpoint {what} for {limit:g} s" if now - self.heard > limit else None

    @property
    def awaits_tokens(self) -> bool:
        """Whether its endpoint could be sending it a token now."""
        return self._link is not None and not self._paused and self.request.stream

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
        if self._kept:
            self._forget()
        if ok is not None:
            self.router.handle(ev.RequestFinished(self.request.id, ok, self.usage))
        self.router.closed(self)
