"""The router: feeds the Director events and performs its commands."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from infctl.core import events as ev
from infctl.core.commands import Dispatch, Hedge, Reject
from infctl.core.director import Director
from infctl.core.fleet import State
from infctl.engine import Capabilities
from infctl.router.intake import POST_PATHS, Intake
from infctl.router.keys import Refusal, hide
from infctl.router.lives import Lives
from infctl.router.pages import own_page
from infctl.router.proxy import Exchange
from infctl.router.responses import PATH as RESPONSES
from infctl.router.responses import Responses, ResponsesExchange
from infctl.router.stalls import Stalls
from infctl.router.telemetry import Telemetry
from infctl.router.tls import EngineTrust
from infctl.router.upstream import Pool, own_fault
from infctl.router.wire import BadRequest, answer, error_body
from infctl.settings import director_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from infctl.core.commands import Command
    from infctl.core.fleet import Endpoint
    from infctl.core.scheduling import Pipeline
    from infctl.engine import Engine
    from infctl.profile.model import Limits, Routing
    from infctl.router.colleagues import Colleagues
    from infctl.router.intake import Asked
    from infctl.router.keys import Account, Keyring
    from infctl.router.leg import Leg
    from infctl.router.recorder import Recorder
    from infctl.router.server import Connection
    from infctl.router.shared import Peers
    from infctl.router.tokenising import Tokenising
    from infctl.router.tracing import Tracing
    from infctl.router.wire import Head

_UNKNOWN = Capabilities()
_OWN = frozenset((b"/health", b"/v1/models", b"/metrics"))


class Router:
    """One fleet's router: what the server, the probes and the admin API share."""

    def __init__(
        self,
        pipeline: Pipeline,
        routing: Routing,
        engines: Mapping[str, Engine],
        seed: int,
        own_metrics_port: bool = False,
        speed: float = 1.0,
    ) -> None:
        self.limits: Limits = routing.limits
        self.keys: Keyring | None = None
        self.engine_trust = EngineTrust()
        self.peers: Peers | None = None
        self.colleagues: Colleagues | None = None
        self.held: set[str] = set()
        self.director = Director(pipeline, Random(seed), director_settings(routing, speed))
        self.director.admission.on_bug = self.on_policy_bug
        self.decide: Callable[[ev.Event, float], list[Command]] = self.director.handle
        self.recorder: Recorder | None = None
        self.lives = Lives(self, routing.health, speed)
        self.pools: dict[int, Pool] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.telemetry = Telemetry(routing.flow.priorities)
        self.stalls = Stalls(self)
        self.responses = Responses()
        self.tracing: Tracing | None = None
        self.tokenising: Tokenising | None = None
        self.now = asyncio.get_running_loop().time
        self._speed = speed
        self.own_metrics_port = own_metrics_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._capabilities = {kind: engine.capabilities for kind, engine in engines.items()}
        self._added: dict[tuple[str, Asked], bytes] = {}
        owned = {field for engine in engines.values() for field in engine.owned_fields}
        self.intake = Intake(owned, routing.extra_paths, seed, routing.flow.priorities)

    def configure(self, pipeline: Pipeline, routing: Routing) -> None:
        """Go on by another policy and other limits; requests in flight keep running, and what was
        learned stays."""
        self.limits = routing.limits
        self.director.configure(pipeline, director_settings(routing, self._speed))
        self.lives.configure(routing.health, self._speed)
        self.intake.paths = POST_PATHS | {p.encode() for p in routing.extra_paths}

    # --- events and commands ----------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Tell the Director and do what it asks. A policy that raises costs its request, told by
        a 500 and a log line, and nothing else."""
        try:
            commands = self.decide(event, self.now())
        except Exception as error:
            self.on_policy_bug(error)
            request_id = _request_id(event)
            commands = [Reject(request_id, 500, "the routing policy failed")] if request_id else []
        for command in commands:
            self._perform(command)

    def _perform(self, command: Command) -> None:
        exchange = self.exchanges.get(command.request_id)
        if exchange is None:
            return
        if isinstance(command, Dispatch):
            exchange.dispatch(command)
        elif isinstance(command, Reject):
            exchange.reject(command)
        elif isinstance(command, Hedge):
            self.telemetry.hedges += 1
            exchange.hedge(command)
        else:
            exchange.abort_legs()

    def later(self, seconds: float, call: Callable[[Leg], None], leg: Leg) -> None:
        """Call back about a leg after a while."""
        asyncio.get_running_loop().call_later(seconds, call, leg)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine, keeping a reference until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- requests (seams.Handler) ----------------------------------------------------------------

    def on_head(self, head: Head) -> Refusal | None:
        if self.keys is None:
            return None
        found = self.keys.check(head, self.now())
        return found if isinstance(found, Refusal) else None

    def on_request(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        path = head.url.partition(b"?")[0]
        account = None
        if self.keys is not None and path != b"/health":
            found = self.keys.check(head, self.now())
            if isinstance(found, Refusal):
                self._turn_away(connection, head, found)
                return
            account = found
            hide(head)
        if path in _OWN:
            self._answer_own(connection, head, path, account)
        elif path not in self.intake.paths:
            self.telemetry.unknown_paths += 1
            self._refuse(connection, head, 404, "there is nothing at this path")
        elif head.method != b"POST":
            self._refuse(connection, head, 405, "use POST")
        else:
            self._proxy(connection, head, body, account)

    def _proxy(
        self,
        connection: Connection,
        head: Head,
        body: bytes | bytearray,
        account: Account | None,
    ) -> None:
        try:
            request, forwarded, asked = self.intake.read(head, body, self.default_model)
        except BadRequest as error:
            self.telemetry.refused[error.status] += 1
            self._refuse(connection, head, error.status, error.message)
            return
        request_id = self.intake.request_id(head)
        request.name = request_id.decode()
        if account is not None and self.keys is not None:
            self.director.experience.estimate(request)
            refusal = self.keys.admit(account, head, request, self.now())
            if refusal is not None:
                self._turn_away(connection, head, refusal)
                return
        kind = Exchange
        if head.url.startswith(RESPONSES):
            kind = ResponsesExchange
            if request.follows:
                request.pinned_to = self.responses.giver(request.tenant, request.follows)
        exchange = kind(self, connection, head, forwarded, request, request_id, asked)
        if self.tracing is not None:
            exchange.trace = self.tracing.begin(head)
        connection.exchange = exchange
        self.exchanges[request.id] = exchange
        if self.peers is not None:
            self.peers.look(self.now(), self.handle)
        if self.tokenising is None or not self.tokenising.takes(exchange):
            self.handle(ev.RequestArrived(request))

    def on_refused(self, status: int) -> None:
        self.telemetry.refused[status] += 1

    def on_policy_bug(self, error: Exception) -> None:
        """A filter, scorer or picker raised."""
        self.telemetry.bug("policy", error)

    def on_bug(self, error: Exception) -> None:
        self.telemetry.bug("request", error)

    def _turn_away(self, connection: Connection, head: Head, why: Refusal) -> None:
        self.telemetry.turned_away(why.status, why.tenant)
        self._refuse(connection, head, why.status, why.message, why.retry_after_s)

    def _refuse(
        self,
        connection: Connection,
        head: Head,
        status: int,
        message: str,
        retry_after_s: int | None = None,
    ) -> None:
        data = answer(
            status,
            error_body(status, message),
            request_id=self.intake.request_id(head),
            retry_after_s=retry_after_s,
            close=not connection.keeps(head),
            head_only=head.method == b"HEAD",
        )
        connection.respond(head, data)

    def default_model(self) -> str:
        """What a request without a model means: the only model there is, if there is one."""
        names = {e.models[0] for _, e in self.director.fleet if e.models}
        return names.pop() if len(names) == 1 else ""

    def leg_failed(self, exchange: Exchange, reason: str, *, blame: bool = True) -> None:
        """An endpoint failed this request; the Director may send it elsewhere. `blame` False: the
        reason is not the endpoint's."""
        started, leg = exchange.started, exchange.leg
        if blame and leg is not None:
            self.lives.failed(leg.slot)
        resumable = started and exchange.resumable()
        if exchange.done:
            return
        then = "continues" if resumable else "cut" if started else "retries"
        self.telemetry.leg_failed(exchange, exchange.endpoint, reason, then)
        tokens = exchange.answered_tokens if resumable else 0
        self.handle(ev.LegFailed(exchange.request.id, reason, started, resumable, tokens))
        if started and not resumable and not exchange.done:
            exchange.cut(reason)

    def capabilities(self, kind: str) -> Capabilities:
        """What an engine kind can do; of an unknown one nothing is known."""
        return self._capabilities.get(kind, _UNKNOWN)

    def added(self, kind: str, asked: Asked) -> bytes:
        """What is added to a streaming request for this engine kind."""
        found = self._added.get((kind, asked))
        if found is None:
            found = self._added[kind, asked] = asked.added(self.capabilities(kind))
        return found

    def keep(self, size: int) -> bool:
        """Count bytes kept for going on with streams, or given back (negative); False beyond the
        budget."""
        self.telemetry.kept_bytes += size
        return self.telemetry.kept_bytes <= self.limits.continuation_mib_max << 20

    def closed(self, exchange: Exchange) -> None:
        """A request is over."""
        self.exchanges.pop(exchange.request.id, None)
        if self.keys is not None:
            self.keys.settle(exchange, self.now())
        self.telemetry.record(exchange, self.now())
        if self.tracing is not None:
            self.tracing.end(exchange, self.now())
        if self.tokenising is not None:
            self.tokenising.closed(exchange)

    # --- the router's own answers -----------------------------------------------------------------

    def _answer_own(
        self, connection: Connection, head: Head, path: bytes, account: Account | None
    ) -> None:
        if head.method not in (b"GET", b"HEAD"):
            self._refuse(connection, head, 405, "use GET")
            return
        status, body, content_type = own_page(self, path, account)
        if path == b"/metrics" and status == 200 and self.colleagues is not None:
            self.spawn(self.colleagues.metrics(connection, head, body))
            return
        data = answer(
            status,
            body,
            content_type=content_type,
            close=not connection.keeps(head),
            head_only=head.method == b"HEAD",
        )
        connection.respond(head, data)

    def metrics(self) -> bytes:
        """The Prometheus text."""
        tokenising = self.tokenising.stats if self.tokenising is not None else None
        lives = self.lives.machine.lives
        return self.telemetry.exposition(self.director, lives, self.now(), tokenising)

    # --- endpoints --------------------------------------------------------------------------------

    def join(self, endpoint: Endpoint, state: State) -> None:
        """An endpoint was discovered."""
        before = self.lives.of(endpoint.id)
        self.leave(endpoint.id, "the endpoint was replaced")
        ready = state is State.READY
        self.handle(ev.EndpointJoined(endpoint, State.STARTING if ready else state))
        slot = self.director.fleet.slot_of(endpoint.id)
        if slot is not None:
            self.pools[slot] = Pool(endpoint, self.engine_trust)
            self.lives.joined(slot, before)
            if endpoint.id in self.held:
                self.held.discard(endpoint.id)
                self.lives.act(endpoint.id, "drain")
        if ready:
            # Only now: requests that waited for this endpoint need its connections.
            self.handle(ev.EndpointChanged(endpoint.id, state))

    def leave(self, endpoint_id: str, reason: str = "the endpoint left the fleet") -> None:
        """An endpoint is gone; what it had not begun to answer goes elsewhere."""
        slot = self.director.fleet.slot_of(endpoint_id)
        if slot is None:
            return
        pool = self.pools.pop(slot, None)
        if pool is not None:
            pool.close()
        stranded = self.at(slot)
        self.lives.machine.left(slot)
        self.handle(ev.EndpointLeft(endpoint_id))
        for leg in stranded:
            leg.on_failure(reason, clean=False)

    def change(
        self, endpoint_id: str, state: State, reason: str, *, abandon: bool | None = None
    ) -> None:
        """Move an endpoint to another state; `abandon` (by default when ejecting) fails over what
        it works on."""
        slot = self.director.fleet.slot_of(endpoint_id)
        if slot is None or self.director.fleet.states[slot] is state:
            return
        self.telemetry.log("endpoint", endpoint=endpoint_id, state=state.value, reason=reason)
        self.handle(ev.EndpointChanged(endpoint_id, state))
        if state is State.EJECTED if abandon is None else abandon:
            for leg in self.at(slot):
                leg.on_failure(reason, clean=False)

    def connect_failed(self, slot: int, error: OSError) -> None:
        """A connection could not be made: refused tells for certain that nobody is there."""
        if isinstance(error, ConnectionRefusedError):
            self.lives.refused(slot, "refuses connections")
        elif not own_fault(error):
            self.suspect(slot, "cannot connect")

    def suspect(self, slot: int, reason: str) -> None:
        """Something speaks against an endpoint, as a stream that stalls: probe it at once, and
        eject it if that one probe fails."""
        self.lives.suspect(slot, reason)

    def at(self, slot: int) -> list[Leg]:
        """What an endpoint works on."""
        return [leg for e in self.exchanges.values() for leg in e.legs() if leg.slot == slot]

    def sweep(self) -> None:
        """Fail what waits too long, and count streamed events; call about once a second."""
        self.handle(ev.Tick())
        now = self.now()
        for exchange in list(self.exchanges.values()):
            self.telemetry.streamed(exchange)
            if exchange.client_stalled(now):
                exchange.connection.abort()
                continue
            for leg in exchange.legs():
                reason = leg.overdue(now)
                if reason:
                    leg.on_failure(reason, clean=False)
        self.lives.tick(now)
        self.telemetry.tick(now)

    def end(self, reason: str) -> None:
        """Answer or cut everything that is still here; those that wait go first, so that none is
        sent to an endpoint for what another one frees."""
        for exchange in sorted(self.exchanges.values(), key=lambda e: e.endpoint is not None):
            exchange.end(reason)


def _request_id(event: ev.Event) -> str | None:
    if isinstance(event, ev.RequestArrived):
        return event.request.id
    return event.request_id if isinstance(event, ev.LegFailed) and not event.started else None
