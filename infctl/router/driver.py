"""The router: feeds the Director events and performs its commands."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import msgspec

from infctl.core import events as ev
from infctl.core.commands import Dispatch, Reject
from infctl.core.director import Director, Settings
from infctl.core.fleet import State
from infctl.router.intake import Intake
from infctl.router.lives import Lives
from infctl.router.proxy import Exchange
from infctl.router.telemetry import Telemetry
from infctl.router.upstream import Pool, own_fault
from infctl.router.wire import JSON, BadRequest, answer, error_body

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from infctl.core.commands import Command
    from infctl.core.fleet import Endpoint
    from infctl.core.scheduling import Pipeline
    from infctl.engine import Engine
    from infctl.profile.model import Limits, Routing
    from infctl.router.server import Connection
    from infctl.router.wire import Head

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
    ) -> None:
        self.limits: Limits = routing.limits
        settings = Settings(routing.attempts_max, routing.retry_share, routing.health.slow_start_s)
        self.director = Director(pipeline, Random(seed), settings)
        self.lives = Lives(self, routing.health)
        self.pools: dict[int, Pool] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.telemetry = Telemetry()
        self.now = asyncio.get_running_loop().time
        self._own_metrics_port = own_metrics_port
        self._tasks: set[asyncio.Task[None]] = set()
        owned = {field for engine in engines.values() for field in engine.owned_fields}
        self.intake = Intake(owned, routing.extra_paths, seed)

    # --- events and commands ----------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Tell the Director and do what it asks. A policy that raises costs its request, told by
        a 500 and a log line, and nothing else."""
        try:
            commands = self.director.handle(event, self.now())
        except Exception as error:
            self.telemetry.bug("policy", error)
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
        else:
            exchange.abort_leg()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine, keeping a reference until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- requests (server.Handler) ----------------------------------------------------------------

    def on_request(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        path = head.url.partition(b"?")[0]
        if path in _OWN:
            self._answer_own(connection, head, path)
        elif path not in self.intake.paths:
            self.telemetry.unknown_paths += 1
            self._refuse(connection, head, 404, "there is nothing at this path")
        elif head.method != b"POST":
            self._refuse(connection, head, 405, "use POST")
        else:
            self._proxy(connection, head, body)

    def _proxy(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        try:
            request, forwarded = self.intake.read(head, body, self.default_model)
        except BadRequest as error:
            self.telemetry.refused[error.status] += 1
            self._refuse(connection, head, error.status, error.message)
            return
        request_id = self.intake.request_id(head)
        request.name = request_id.decode()
        exchange = Exchange(self, connection, head, forwarded, request, request_id)
        connection.exchange = exchange
        self.exchanges[request.id] = exchange
        self.handle(ev.RequestArrived(request))

    def on_refused(self, status: int) -> None:
        self.telemetry.refused[status] += 1

    def on_bug(self, error: Exception) -> None:
        self.telemetry.bug("request", error)

    def _refuse(self, connection: Connection, head: Head, status: int, message: str) -> None:
        data = answer(
            status,
            error_body(status, message),
            request_id=self.intake.request_id(head),
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
        started = bool(exchange.first_byte)
        if blame:
            self.lives.failed(exchange.slot)
        self.telemetry.leg_failed(exchange.endpoint, started)
        self.handle(ev.LegFailed(exchange.request.id, reason, started))
        if started and not exchange.done:
            exchange.cut(reason)

    def closed(self, exchange: Exchange) -> None:
        """A request is over."""
        self.exchanges.pop(exchange.request.id, None)
        self.telemetry.record(exchange, self.now())

    # --- the router's own answers -----------------------------------------------------------------

    def _answer_own(self, connection: Connection, head: Head, path: bytes) -> None:
        if head.method not in (b"GET", b"HEAD"):
            self._refuse(connection, head, 405, "use GET")
            return
        status, body, content_type = self.own_page(path)
        data = answer(
            status,
            body,
            content_type=content_type,
            close=not connection.keeps(head),
            head_only=head.method == b"HEAD",
        )
        connection.respond(head, data)

    def own_page(self, path: bytes) -> tuple[int, bytes, bytes]:
        """Status, body and content type of a page the router answers itself."""
        if path == b"/metrics":
            if self._own_metrics_port:
                body = error_body(404, "metrics are on a port of their own")
                return 404, body, JSON
            return 200, self.metrics(), self.telemetry.CONTENT_TYPE
        if not bool(self.director.fleet.ready.any()):
            body = error_body(503, "no endpoint is ready yet")
            return 503, body, JSON
        return 200, b"" if path == b"/health" else self._models(), JSON

    def metrics(self) -> bytes:
        """The Prometheus text."""
        return self.telemetry.exposition(self.director, self.lives.machine.lives, self.now())

    def _models(self) -> bytes:
        fleet = self.director.fleet
        ready = [e for slot, e in fleet if fleet.states[slot] is State.READY]
        names = {name: e for e in ready for name in e.models}
        data = [
            {"id": name, "object": "model", "owned_by": e.engine, "root": e.models[0]}
            | ({"max_model_len": e.context_tokens} if e.context_tokens else {})
            for name, e in sorted(names.items())
        ]
        return msgspec.json.encode({"object": "list", "data": data})

    # --- endpoints --------------------------------------------------------------------------------

    def join(self, endpoint: Endpoint, state: State) -> None:
        """An endpoint was discovered."""
        before = self.lives.of(endpoint.id)
        self.leave(endpoint.id, "the endpoint was replaced")
        self.handle(ev.EndpointJoined(endpoint, state))
        slot = self.director.fleet.slot_of(endpoint.id)
        if slot is not None:
            self.pools[slot] = Pool(endpoint)
            self.lives.joined(slot, before)

    def leave(self, endpoint_id: str, reason: str = "the endpoint left the fleet") -> None:
        """An endpoint is gone; what it had not begun to answer goes elsewhere."""
        slot = self.director.fleet.slot_of(endpoint_id)
        if slot is None:
            return
        pool = self.pools.pop(slot, None)
        if pool is not None:
            pool.close()
        stranded = self._at(slot)
        self.lives.machine.left(slot)
        self.handle(ev.EndpointLeft(endpoint_id))
        for exchange in stranded:
            exchange.on_failure(reason, clean=False)

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
            for exchange in self._at(slot):
                exchange.on_failure(reason, clean=False)

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

    def _at(self, slot: int) -> list[Exchange]:
        return [e for e in self.exchanges.values() if e.slot == slot and e.endpoint is not None]

    def sweep(self) -> None:
        """Fail what waits too long, and count streamed events; call about once a second."""
        now = self.now()
        for exchange in list(self.exchanges.values()):
            self.telemetry.streamed(exchange)
            reason = exchange.overdue(now)
            if exchange.client_stalled(now):
                exchange.connection.abort()
            elif reason:
                exchange.on_failure(reason, clean=False)
        self.lives.tick(now)
        self.telemetry.tick(now)


def _request_id(event: ev.Event) -> str | None:
    if isinstance(event, ev.RequestArrived):
        return event.request.id
    return event.request_id if isinstance(event, ev.LegFailed) and not event.started else None
