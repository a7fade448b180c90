"""The admin API: versioned JSON over the router's own Unix socket."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.core.ledger import rows
from infctl.router.colleagues import Underway, together, worker_stats
from infctl.router.stats import total
from infctl.router.wire import BadRequest, answer, error_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from infctl.core.fleet import Endpoint
    from infctl.core.ledger import Decision
    from infctl.router.colleagues import Colleagues, WorkerStats
    from infctl.router.driver import Router
    from infctl.router.keys import Refusal
    from infctl.router.server import Connection
    from infctl.router.stats import EndpointStats
    from infctl.router.wire import Head

    Reload = Callable[[], Awaitable[tuple[int, Any]]]

_LISTED = 100
"""How many decisions are listed at once."""

_ACTIONS = ("drain", "eject", "resume")


class Admin:
    """Answers admin requests (seams.Handler): for this worker, or, with `colleagues`, for all."""

    def __init__(
        self,
        router: Router,
        route_table: Callable[[], Any],
        reload: Reload,
        colleagues: Colleagues | None = None,
    ) -> None:
        self._router = router
        self._colleagues = colleagues
        self._route_table = route_table
        self._reload = reload

    def on_head(self, head: Head) -> Refusal | None:
        """Whoever can open the socket may ask."""
        return None

    def on_refused(self, status: int) -> None:
        """Malformed requests on the admin socket are answered, not counted."""

    def on_bug(self, error: Exception) -> None:
        self._router.telemetry.bug("admin request", error)

    def on_request(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        target = head.url.decode("latin-1")
        if (head.method, target) == (b"POST", "/v1/profile"):
            connection.exchange = Underway()
            self._router.spawn(self._reloaded(connection, head))
        elif (head.method, target) == (b"POST", "/v1/explain"):
            connection.exchange = Underway()
            self._router.spawn(self._explained(connection, head, body))
        elif self._colleagues is not None:
            connection.exchange = Underway()
            work = self._together(connection, head, target, self._colleagues)
            self._router.spawn(work)
        else:
            self._send(connection, head, *self._answer(head.method.decode(), target))

    async def _reloaded(self, connection: Connection, head: Head) -> None:
        status, found = await self._reload()
        if status == 200 and self._colleagues is not None:
            await self._colleagues.reload()
        self._send(connection, head, status, found)

    async def _together(
        self, connection: Connection, head: Head, target: str, colleagues: Colleagues
    ) -> None:
        """Answer for all workers; one that is told something passes it on."""
        method = head.method.decode()
        status, found = 200, None
        match method, _parts(target):
            case "GET", ["v1", "fleet"] | ["v1", "endpoints", _]:
                status, found = self._answer(method, target, await colleagues.stats())
            case "GET", ["v1", "decisions", *_]:
                status, found = self._answer(method, target)
                for body in await colleagues.ask(method, target):
                    found["decisions"] += msgspec.json.decode(body)["decisions"]
                found["decisions"].sort(key=lambda d: d["age_s"])
                del found["decisions"][_LISTED:]
            case "POST", ["v1", "endpoints", _, _]:
                status, found = self._answer(method, target)
                if status == 200:
                    await colleagues.ask(method, target)
            case _:
                status, found = self._answer(method, target)
        self._send(connection, head, status, found)

    async def _explained(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        try:
            status, data = await self._explain(head, body)
        except Exception as error:  # a policy may raise what it likes; somebody waits for an answer
            self.on_bug(error)
            status, data = 500, error_body(500, "the explanation failed")
        self._send(connection, head, status, data)

    def _send(self, connection: Connection, head: Head, status: int, data: Any) -> None:
        payload = data if isinstance(data, bytes) else msgspec.json.encode(data)
        connection.respond(head, answer(status, payload, close=not head.keep_alive))

    def _answer(
        self, method: str, target: str, others: Sequence[WorkerStats] = ()
    ) -> tuple[int, Any]:
        match method, _parts(target):
            case "GET", ["v1", "fleet"]:
                return 200, self._fleet(others)
            case "GET", ["v1", "route-table"]:
                return 200, self._route_table()
            case "GET", ["v1", "decisions"]:
                return 200, self._decisions(list(islice(self._router.director.ledger, _LISTED)))
            case "GET", ["v1", "decisions", name]:
                return 200, self._decisions(self._router.director.ledger.find(name))
            case "GET", ["v1", "endpoints", name]:
                return self._endpoint(name, others)
            case "GET", ["v1", "worker", "stats"]:
                return 200, worker_stats(self._router, self._held())
            case "GET", ["v1", "worker", "metrics"]:
                router = self._router
                return 200, router.metrics()
            case "POST", ["v1", "endpoints", name, action] if action in _ACTIONS:
                return self._act(name, action)
            case _:
                message = f"the admin API has no {method} {target}"
                return 404, error_body(404, message)

    def _decisions(self, found: list[Decision]) -> dict[str, Any]:
        """Newest first; each with what it was based on, what was expected, what came true."""
        now_ms = self._router.now() * 1000.0
        return self._policy() | {"decisions": [_decision(d, now_ms) for d in found]}

    def _policy(self) -> dict[str, Any]:
        pipeline = self._router.director.pipeline
        return {"policy": pipeline.name, "units": {w.name: w.scorer.unit for w in pipeline.scorers}}

    async def _explain(self, head: Head, body: bytes | bytearray) -> tuple[int, Any]:
        """Where a completion request with this body would go now."""
        router = self._router
        try:
            request, _, _ = router.intake.read(head, body, router.default_model)
        except BadRequest as error:
            return error.status, error_body(error.status, error.message)
        if router.tokenising is not None:
            await asyncio.to_thread(router.tokenising.whole, request, body)
        found, best = router.director.explain(request, router.now())
        return 200, self._policy() | {
            "model": request.model,
            "prompt_tokens": round(request.prompt_tokens),
            "decided_by_score": best >= 0,
            "endpoints": found,
        }

    def _held(self) -> list[str]:
        fleet = self._router.director.fleet
        lives = self._router.lives.machine.lives
        return [e.id for slot, e in fleet if slot in lives and lives[slot].held]

    def _stats(self, name: str, others: Sequence[WorkerStats]) -> EndpointStats:
        return together(self._router.telemetry.stats(name), name, others)

    def _fleet(self, others: Sequence[WorkerStats] = ()) -> dict[str, Any]:
        rows = [self._row(slot, endpoint, others) for slot, endpoint in self._router.director.fleet]
        stats = total(self._stats(row["id"], others) for row in rows)
        totals = _figures(stats)
        for key in ("inflight", "running", "waiting"):
            totals[key] = sum(row[key] or 0 for row in rows)
        usages = [row["kv_usage"] for row in rows if row["kv_usage"] is not None]
        totals["kv_usage"] = sum(usages) / len(usages) if usages else None
        totals["queued"] = len(self._router.director.flow) + sum(o.queued for o in others)
        name = self._router.director.pipeline.name
        return {"policy": name, "endpoints": rows, "totals": totals}

    def _row(self, slot: int, endpoint: Endpoint, others: Sequence[WorkerStats]) -> dict[str, Any]:
        fleet = self._router.director.fleet
        load = fleet.loads[slot]
        identity = {
            "id": endpoint.id,
            "pool": endpoint.pool,
            "url": endpoint.url,
            "engine": endpoint.engine,
            "models": endpoint.models,
            "state": fleet.states[slot].value,
            "inflight": int(fleet.inflight[slot] - fleet.foreign[slot]),
            "running": load.running if load else None,
            "waiting": load.waiting if load else None,
            "kv_usage": load.kv_usage if load else None,
        }
        identity |= self._router.lives.describe(slot)
        return identity | _figures(self._stats(endpoint.id, others))

    def _endpoint(self, name: str, others: Sequence[WorkerStats] = ()) -> tuple[int, Any]:
        slot = self._router.director.fleet.slot_of(name)
        endpoint = None if slot is None else self._router.director.fleet.slots[slot]
        if slot is None or endpoint is None:
            return 404, error_body(404, f"there is no endpoint {name!r}")
        return 200, self._row(slot, endpoint, others)

    def _act(self, name: str, action: str) -> tuple[int, Any]:
        status, row = self._endpoint(name)
        if status == 200:
            self._router.lives.act(name, action)
            status, row = self._endpoint(name)
        return status, row


def _parts(target: str) -> list[str]:
    return target.partition("?")[0].strip("/").split("/")


def _decision(decision: Decision, now_ms: float) -> dict[str, Any]:
    slot = decision.choice.slot
    endpoint = decision.endpoints[slot]
    return {
        "request": decision.name,
        "model": decision.model,
        "age_s": round((now_ms - decision.at_ms) / 1000.0, 3),
        "attempt": decision.attempt,
        "queue_ms": round(decision.queue_ms, 1),
        "endpoint": endpoint.id if endpoint else None,
        "prompt_tokens": round(decision.prompt_tokens),
        "expected": {
            "ttft_ms": round(decision.expected_ttft_ms, 1),
            "cached_tokens": round(decision.expected_cached_tokens),
        },
        "actual": {"ttft_ms": decision.ttft_ms, "cached_tokens": decision.cached_tokens},
        "outcome": decision.outcome,
        "endpoints": rows(decision.endpoints, decision.cached, decision.choice, slot),
    }


def _figures(stats: EndpointStats) -> dict[str, Any]:
    return {
        "requests": stats.requests,
        "failed_legs": stats.failed_legs,
        "hit_rate": stats.hit_rate(),
        "ttft_ms": stats.ttft_ms(),
        "tokens_per_s": stats.tokens_per_s,
        "output_tokens": stats.output_tokens,
    }
