"""One request on its way: to an endpoint, perhaps to another, and the answer back.

Nothing reaches the client before the endpoint's first body byte, so that until then another
endpoint may take over. From then on bytes pass through as they came, chunked framing included;
when an endpoint fails in the middle of a stream, another one goes on from what was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from infctl.core import events as ev
from infctl.core.commands import Reject
from infctl.router.continuation import Unsafe
from infctl.router.framing import LAST_CHUNK, chunk
from infctl.router.leg import Leg
from infctl.router.resume import Resume
from infctl.router.tap import Tap
from infctl.router.usage import parse_usage, usage_of
from infctl.router.wire import answer, error_body

if TYPE_CHECKING:
    from infctl.core.commands import Dispatch, Hedge, Shed
    from infctl.core.fleet import Endpoint
    from infctl.core.request import Request
    from infctl.router.driver import Router
    from infctl.router.intake import Asked
    from infctl.router.server import Connection
    from infctl.router.tracing import Trace
    from infctl.router.upstream import Pool
    from infctl.router.wire import Head


class Exchange:
    """A client's request and its answer.

    `started`: bytes of the answer went to the client. `leg` is the attempt that works on it, or
    the last one that did; `rival` a second one at the same time, until either answers. `why_not`:
    why an answer that began cannot go on elsewhere; `answered_tokens`: what the leg that failed had
    got out. `trace` is there while spans are sent.
    """

    __slots__ = (
        "_kept", "_resume", "_scanned", "answered_tokens", "arrived", "asked", "body", "connection",
        "done", "events",
        "first_byte", "head", "leg", "queue_ms", "request", "request_id", "rival", "router",
        "shed", "started", "status", "trace", "usage",
        "why_not",
    )  # fmt: skip

    leg_type: ClassVar[type[Leg]] = Leg

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
        self.asked = asked
        self.arrived = router.now()
        self.first_byte = 0.0
        self.leg: Leg | None = None
        self.rival: Leg | None = None
        self.queue_ms = 0.0
        self.shed: Shed | None = None
        self.status = 0
        self.events = 0
        self.usage: ev.Usage | None = None
        self.started = self.done = False
        self.why_not = ""
        self.answered_tokens = 0
        self.trace: Trace | None = None
        self._resume: Resume | None = None
        self._kept = 0
        self._scanned = 0

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the request is, or was last; None before it was sent anywhere."""
        return self.leg.endpoint if self.leg is not None else None

    @property
    def attempt(self) -> int:
        """Which attempt that is, from 1 on; 0 before the first."""
        return self.leg.attempt if self.leg is not None else 0

    @property
    def expected_cached(self) -> int:
        """Tokens of the prompt that were expected to be cached there."""
        return self.leg.expected_cached if self.leg is not None else 0

    # --- commands ---------------------------------------------------------------------------------

    def dispatch(self, command: Dispatch) -> None:
        """Send the request to the endpoint the Director chose."""
        self.queue_ms += command.queue_ms
        if not self.started:
            self.first_byte = 0.0
        self._start(command)
        if command.hedge_after_s and self.leg is not None:
            self.router.later(command.hedge_after_s, self._slow, self.leg)

    def _start(self, command: Dispatch | Hedge) -> Leg | None:
        endpoint = self.router.director.fleet.slots[command.slot]
        pool = self.router.pools.get(command.slot)
        if endpoint is None or pool is None:
            self.router.leg_failed(self, "the endpoint is gone", blame=False)
            return None
        leg = self.leg_type(self, command.slot, endpoint, command.attempt, command.cached_tokens)
        if self.leg is not None and not self.leg.over:
            self.rival = leg
        else:
            self.leg = leg
        leg.start(pool)
        return leg

    def _slow(self, leg: Leg) -> None:
        """Its first byte is long overdue: perhaps another endpoint is faster."""
        if leg is self.leg and not (leg.over or leg.begun or self.done or self.rival):
            self.router.handle(ev.FirstByteOverdue(self.request.id))

    def hedge(self, command: Hedge) -> None:
        """Send the request to a second endpoint too; who answers first wins."""
        self._start(command)

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

    def legs(self) -> list[Leg]:
        """Those that work on it now."""
        return [leg for leg in (self.leg, self.rival) if leg is not None and not leg.over]

    def abort_legs(self) -> None:
        """Let go of every endpoint."""
        for leg in self.legs():
            leg.abort()

    # --- what becomes of legs ---------------------------------------------------------------------

    def settle(self, winner: Leg) -> None:
        """One of two legs answers: let go of the other."""
        rival, self.rival = self.rival, None
        loser = self.leg if winner is rival else rival
        if loser is not None:
            loser.abort()
        self.leg = winner
        self._settled(winner is rival)

    def _settled(self, rival_won: bool) -> None:
        self.router.telemetry.hedges_won += rival_won
        self.router.handle(ev.HedgeSettled(self.request.id, rival_won))

    def leg_failed(self, leg: Leg, reason: str, blame: bool = True) -> None:
        """An endpoint failed; where two work on the request, the other one goes on. `blame` False:
        the reason is not the endpoint's."""
        rival = self.rival
        if rival is None:
            self.router.leg_failed(self, reason, blame=blame)
            return
        if blame:
            self.router.lives.failed(leg.slot)
        self.router.telemetry.leg_failed(self, leg.endpoint, reason, "hedged")
        self.rival = None
        if leg is not rival:
            self.leg = rival
        self._settled(leg is not rival)

    def finished(self, leg: Leg) -> None:
        """The answer is complete."""
        ok = 200 <= self.status < 300
        if ok:
            self.router.lives.answered(leg.slot)
        elif self.status >= 500:
            self.router.lives.failed(leg.slot)
        joint = leg.tap.joint if leg.tap is not None else None
        if joint is not None and joint.usage:
            self.usage = usage_of(joint.usage)
        elif ok:
            self.usage = parse_usage(leg.tail)
        self._close(ok)
        self.connection.finish(self.head.keep_alive)

    # --- going on elsewhere -----------------------------------------------------------------------

    def tap(self, engine: str) -> Tap:
        """What follows a stream of this kind of engine, keeping what going on will need."""
        if self._resume is not None:
            return Tap(joint=self._resume.joint())
        if self.rival is None:
            self._forget()  # what was kept of a leg that said nothing
        can = self.router.capabilities(engine)
        tap = Tap(ids=self.asked.adds_ids(can), usage=self.asked.adds_usage(can))
        if not self.keep(len(self.body)):
            tap.pieces = None
        return tap

    def keep(self, size: int) -> bool:
        """Count what is kept; False beyond the router's budget, and then nothing is."""
        self._kept += size
        if self.router.keep(size):
            return True
        self._forget()
        self.why_not = "too much was kept already for other streams"
        self.router.telemetry.not_kept += 1
        return False

    def _forget(self) -> None:
        self.router.keep(-self._kept)
        self._kept = 0

    async def rest(self, pool: Pool, endpoint: Endpoint) -> bytes | None:
        """The body of the request for the rest of the answer; None when there is no rest.
        Raises Unsafe."""
        if self._resume is None:
            raise Unsafe("nothing was kept")
        return await self._resume.body(pool, self.router.capabilities(endpoint.engine))

    def resumable(self) -> bool:
        """Whether another endpoint may go on with what the client has; finishes the answer at
        once where nothing but its ending is missing."""
        tap = self.leg.tap if self.leg is not None else None
        self.answered_tokens = 0
        if tap is None and self._resume is not None:
            return True  # this leg had not said anything
        if tap is None or tap.pieces is None:
            self.why_not = self.why_not or "this kind of answer cannot be continued"
            return False
        try:
            if self._resume is None:
                self._resume = Resume(self.asked.path, self.body)
            before = self._resume.sofar.tokens
            self._resume.take(tap.pieces)
        except Unsafe as error:
            self.why_not = str(error)
            return False
        tap.pieces.clear()
        self.answered_tokens = self._resume.sofar.tokens - before
        if self._resume.complete:
            self.complete()
            return False
        return True

    def complete(self) -> None:
        """Every token is out: write what is missing behind them."""
        self.abort_legs()
        ending = self._resume.ending() if self._resume is not None else b""
        self.connection.write(chunk(ending) + LAST_CHUNK)
        self._close(ok=True)
        self.connection.finish(self.head.keep_alive)

    def cut(self, reason: str) -> None:
        """The endpoint failed after its first byte: end the stream with an error event where its
        framing allows one, or break the connection; never let it look complete."""
        if self.trace is not None:
            self.trace.cut = True
        self.abort_legs()
        if self.why_not:
            reason = f"{reason}; not continued: {self.why_not}"
        if self._resume is not None or self._between_events():
            event = b"data: %s\n\n" % error_body(502, f"stream broken off: {reason}")
            self.connection.write(chunk(event) + LAST_CHUNK)
            self._close(ok=False)
            self.connection.finish(False)
            return
        self._close(ok=False)
        self.connection.abort()

    def _between_events(self) -> bool:
        """Whether the client stands between two events of a chunked stream."""
        leg = self.leg
        response = leg.response if leg is not None else None
        if leg is None or response is None or not (response.is_stream and response.chunked):
            return False
        return leg.tap is not None or (leg.tail.endswith(b"\n\n\r\n") and response.may_end())

    def end(self, reason: str) -> None:
        """The router stops: a 503 where nothing has been sent yet, a broken stream elsewhere."""
        if self.done:
            return
        if self.started:
            self.cut(reason)
        else:
            self.abort_legs()
            self.reject(Reject(self.request.id, 503, reason, 1))

    # --- the client -------------------------------------------------------------------------------

    def client_gone(self) -> None:
        if not self.done:
            self.status = self.status or 499
            self.abort_legs()
            self.router.handle(ev.RequestCancelled(self.request.id))
            self._close(ok=None)

    def pause(self) -> None:
        for leg in self.legs():
            leg.pause()

    def resume(self) -> None:
        for leg in self.legs():
            leg.resume()

    def client_stalled(self, now: float) -> bool:
        """Whether the client has taken nothing for too long while its endpoint is held up."""
        leg = self.leg
        limit = self.router.limits.stream_idle_s
        return leg is not None and leg.paused and now - leg.heard > limit

    def new_events(self) -> int:
        """SSE events since the last call."""
        new, self._scanned = self.events - self._scanned, self.events
        return new

    def _close(self, ok: bool | None) -> None:
        """The request is over; `ok` None when its client left."""
        self.done = True
        if self.rival is not None:
            self.rival.abort()
            self.rival = None
            self._settled(False)
        if self._kept:
            self._forget()
        if ok is not None:
            self.router.handle(ev.RequestFinished(self.request.id, ok, self.usage))
        self.router.closed(self)
        self.leg = None  # a leg refers back: cycles would wait for the collector
