"""One attempt at one endpoint: the request sent, the answer's bytes received."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.core import events as ev
from infctl.router.continuation import Unsafe
from infctl.router.legacy import Legacy
from infctl.router.upstream import own_fault
from infctl.router.wire import request_head, response_head

if TYPE_CHECKING:
    from infctl.core.fleet import Endpoint
    from infctl.router.proxy import Exchange
    from infctl.router.tap import Tap
    from infctl.router.upstream import Link, Pool
    from infctl.router.wire import ResponseHead

_RETRYABLE = frozenset((500, 502, 503, 504))
_TAIL = 4096


class Leg:
    """The receiver of an endpoint's answer to an exchange's request.

    `begun`: bytes of the answer's body came. `tail`: the last of them. `over`: nothing more comes
    of this leg, whether it ended, failed or was let go. `gap_s`: the longest wait between reads of
    the body.
    """

    __slots__ = (
        "_held", "_legacy", "_resent", "attempt", "begun", "endpoint", "exchange",
        "expected_cached", "gap_s", "heard", "link", "over", "paused", "response", "slot", "tail",
        "tap",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, slot: int, endpoint: Endpoint, attempt: int, expected_cached: int
    ) -> None:
        self.exchange = exchange
        self.slot = slot
        self.endpoint = endpoint
        self.attempt = attempt
        self.expected_cached = expected_cached
        self.heard = self.gap_s = 0.0
        self.link: Link | None = None
        self.response: ResponseHead | None = None
        self.tap: Tap | None = None
        self.tail = b""
        self.begun = self.over = self.paused = False
        self._held = b""
        self._legacy: Legacy | None = None
        self._resent = False

    # --- the request ------------------------------------------------------------------------------

    def start(self, pool: Pool) -> None:
        """Send the request, or what is left to generate of an answer that has begun."""
        exchange = self.exchange
        link = None if exchange.started else pool.take()
        if link is not None:
            self._send(link, exchange.body)
        else:
            exchange.router.spawn(self._connect(pool))

    async def _connect(self, pool: Pool) -> None:
        exchange = self.exchange
        started = exchange.started
        try:
            body = await exchange.rest(pool, self.endpoint) if started else exchange.body
            if body is None:
                if not self.over:
                    exchange.complete()
                return
            link = pool.take() if started else None
            link = link or await pool.connect(exchange.router.limits.connect_s)
        except Unsafe as error:
            exchange.why_not = str(error)
            self._fail("it was to go on with an answer", blame=False)
            return
        except OSError as error:
            reason = "timed out" if isinstance(error, TimeoutError) else error
            if not self.over:
                exchange.router.connect_failed(self.slot, error)
            self._fail(f"cannot connect: {reason}", blame=not own_fault(error))
            return
        if self.over:
            pool.put_back(link)
        else:
            self._send(link, body)

    def _send(self, link: Link, body: bytes | bytearray) -> None:
        exchange = self.exchange
        router, head = exchange.router, exchange.head
        self.link = link
        self.heard = now = router.now()
        router.stalls.heard.setdefault(self.slot, now)
        added = b""
        if exchange.asked.path and not exchange.started:
            added = router.added(self.endpoint.engine, exchange.asked)
        headers = head.headers
        if exchange.trace is not None:
            headers = exchange.trace.visit(self, headers, now)
        sent = request_head(
            head.method, head.url, link.pool.netloc, headers, exchange.request_id,
            len(body) + len(added),
        )  # fmt: skip
        if added:
            at = body.index(b"{") + 1
            link.send(self, sent + body[:at] + added, memoryview(body)[at:])
        else:
            link.send(self, sent, body)
        self.paused = False
        if exchange.connection.full:  # since an earlier answer, or an earlier leg of this one
            self.pause()

    def abort(self) -> None:
        """Let go of the endpoint; it sees the connection drop and stops generating."""
        self.over = True
        if self.exchange.trace is not None:
            self.exchange.trace.left(self, self.exchange.router.now())
        link, self.link = self.link, None
        if link is not None:
            link.abort()

    # --- the answer (upstream.Receiver) -----------------------------------------------------------

    def on_head(self, response: ResponseHead) -> None:
        exchange = self.exchange
        self.heard = exchange.router.now()
        stream = response.is_stream and response.chunked
        if response.status in _RETRYABLE or (exchange.started and not stream):
            self._fail(f"answered {response.status}")
            return
        self.response = response
        if exchange.asked.path and stream:
            self.tap = exchange.tap(self.endpoint.engine)
        if not exchange.started:
            self._hold_head(exchange, response)

    def _hold_head(self, exchange: Exchange, response: ResponseHead) -> None:
        """The head waits for the first bytes behind it: until then another leg may answer."""
        close = not exchange.connection.keeps(exchange.head)
        if response.length is not None:
            framing = b"content-length: %d\r\n" % response.length
        elif exchange.head.version == "1.0":
            self._legacy = Legacy(response, exchange.router.limits.body_mib_max << 20)
            return
        elif response.chunked:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing, close = b"", True
        name = self.endpoint.id.encode()
        self._held = response_head(response, exchange.request_id, name, framing, close)

    def on_data(self, data: bytes) -> None:
        exchange = self.exchange
        router = exchange.router
        before = self.heard
        self.heard = now = router.stalls.heard[self.slot] = router.now()
        if self.begun:
            if now - before > self.gap_s:
                self.gap_s = now - before
        elif data:
            self._begin()
        if self._legacy is not None:
            if not self._legacy.add(data):
                self._fail("the answer is too large to buffer for HTTP/1.0", blame=False)
            return
        size = len(data)
        exchange.events += data.count(b"data: ")
        self.tail = data if size >= _TAIL else (self.tail + data)[-_TAIL:]
        if self.tap is not None:
            self._tapped(self.tap, data)
        else:
            self._pass(data)

    def _begin(self) -> None:
        """The first bytes of the answer's body: not before, for engines send a head at once."""
        self._win()
        self.begun = True
        exchange = self.exchange
        exchange.first_byte = exchange.first_byte or self.heard
        if self.response is not None and self.response.is_stream:
            exchange.router.handle(ev.FirstByte(exchange.request.id))

    def _win(self) -> None:
        """It is this leg that answers the client."""
        exchange, response = self.exchange, self.response
        if exchange.rival is not None:
            exchange.settle(self)
        if response is not None and not exchange.started:
            exchange.status = response.status
            if response.length is None and not response.chunked and self._legacy is None:
                exchange.head.pipelined = True  # its end is the connection's

    def _pass(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        self.exchange.started = True
        self.exchange.connection.write(data)

    def _tapped(self, tap: Tap, data: bytes) -> None:
        exchange = self.exchange
        try:
            passed = tap.feed(data)
        except Unsafe as error:
            exchange.why_not = str(error)
            self._fail("it sent something else than a stream's events")
            return
        if tap.pieces is not None and not exchange.keep(len(data)):
            tap.pieces = None
        if passed:
            self._pass(passed)
        if tap.failure:
            self._fail(tap.failure)

    def on_end(self) -> None:
        exchange = self.exchange
        if not self.begun:
            self._win()
        self.link, self.over = None, True
        if exchange.trace is not None:
            exchange.trace.left(self, self.heard)
        if self._legacy is not None:
            self.tail = self._legacy.body()[-_TAIL:]
            close = not exchange.connection.keeps(exchange.head)
            name = self.endpoint.id.encode()
            exchange.connection.write(self._legacy.answer(exchange.request_id, name, close))
        elif self._held:
            exchange.connection.write(self._held)
        exchange.finished(self)

    def on_failure(self, reason: str, clean: bool) -> None:
        link = self.link
        if clean and link is not None and link.reused and not self._resent:
            # An idle connection may close just as it is used; that says nothing of the endpoint.
            self._resent = True
            self.link = None
            self.exchange.router.spawn(self._connect(link.pool))
            return
        self._fail(reason)

    def _fail(self, reason: str, blame: bool = True) -> None:
        if not self.over:
            if self.exchange.trace is not None:
                self.exchange.trace.left(self, self.exchange.router.now(), reason)
            self.abort()
            self.exchange.leg_failed(self, reason, blame)

    # --- time -------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The client is slow: read nothing more for now."""
        if self.link is not None and not self.paused:
            self.paused, self.heard = True, self.exchange.router.now()
            self.link.transport.pause_reading()

    def resume(self) -> None:
        """The client caught up."""
        if self.link is not None and self.paused:
            self.link.transport.resume_reading()
            self.heard = self.exchange.router.now()
        self.paused = False

    def overdue(self, now: float) -> str | None:
        """Why this leg has waited too long for its endpoint, or None."""
        if self.link is None or self.paused:
            return None
        limits = self.exchange.router.limits
        limit, what = (
            (limits.stream_idle_s, "fell silent")
            if self.begun
            else (limits.first_byte_s, "sent no first byte")
        )
        return f"the endpoint {what} for {limit:g} s" if now - self.heard > limit else None

    @property
    def awaits_tokens(self) -> bool:
        """Whether its endpoint could be sending it a token now."""
        return self.link is not None and not self.paused and self.exchange.request.stream
