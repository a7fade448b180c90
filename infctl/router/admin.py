"""The admin API: versioned JSON over the router's own Unix socket."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.core.ledger import rows
from infctl.router.stats import total
from infctl.router.wire import BadRequest, answer, error_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from infctl.core.fleet import Endpoint
    from infctl.core.ledger import Decision
    from infctl.router.driver import Router
    from infctl.router.keys import Refusal
    from infctl.router.server import Connection
    from infctl.router.stats import EndpointStats
    from infctl.router.wire import Head

    Reload = Callable[[], Awaitable[tuple[int, Any]]]

_LISTED = 100
"""How many decisions are listed at once."""

_ACTIONS = ("drain", "eject", "resume")


class _Underway:
    """A request that is answered later (seams.Exchange); its client may leave meanwhile."""

    def client_gone(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Admin:
    """Answers admin requests (seams.Handler)."""

    def __init__(self, router: Router, route_table: Callable[[], Any], reload: Reload) -> None:
        self._router = router
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
            connection.exchange = _Underway()
            self._router.spawn(self._reloaded(connection, head))
        elif (head.method, target) == (b"POST", "/v1/explain"):
            connection.exchange = _Underway()
            self._router.spawn(self._explained(connection, head, body))
        else:
            self._send(connection, head, *self._answer(head.method.decode(), target))

    async def _reloaded(self, connection: Connection, head: Head) -> None:
        self._send(connection, head, *await self._reload())

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

    def _answer(self, method: str, target: str) -> tuple[int, Any]:
        match method, target.partition("?")[0].strip("/").split("/"):
            case "GET", ["v1", "fleet"]:
                return 200, self._fleet()
            case "GET", ["v1", "route-table"]:
                return 200, self._route_table()
            case "GET", ["v1", "decisions"]:
                return 200, self._decisions(list(islice(self._router.director.ledger, _LISTED)))
            case "GET", ["v1", "decisions", name]:
                return 200, self._decisions(self._router.director.ledger.find(name))
            case "GET", ["v1", "endpoints", name]:
                return self._endpoint(name)
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

    def _fleet(self) -> dict[str, Any]:
        rows = [self._row(slot, endpoint) for slot, endpoint in self._router.director.fleet]
        stats = total(self._router.telemetry.stats(row["id"]) for row in rows)
        totals = _figures(stats)
        for key in ("inflight", "running", "waiting"):
            totals[key] = sum(row[key] or 0 for row in rows)
        usages = [row["kv_usage"] for row in rows if row["kv_usage"] is not None]
        totals["kv_usage"] = sum(usages) / len(usages) if usages else None
        totals["queued"] = len(self._router.director.flow)
        name = self._router.director.pipeline.name
        return {"policy": name, "endpoints": rows, "totals": totals}

    def _row(self, slot: int, endpoint: Endpoint) -> dict[str, Any]:
        fleet = self._router.director.fleet
        load = fleet.loads[slot]
        identity = {
            "id": endpoint.id,
            "pool": endpoint.pool,
            "url": endpoint.url,
            "engine": endpoint.engine,
            "models": endpoint.models,
            "state": fleet.states[slot].value,
            "inflight": int(fleet.inflight[slot]),
            "running": load.running if load else None,
            "waiting": load.waiting if load else None,
            "kv_usage": load.kv_usage if load else None,
        }
        identity |= self._router.lives.describe(slot)
        return identity | _figures(self._router.telemetry.stats(endpoint.id))

    def _endpoint(self, name: str) -> tuple[int, Any]:
        slot = self._router.director.fleet.slot_of(name)
        endpoint = None if slot is None else self._router.director.fleet.slots[slot]
        if slot is None or endpoint is None:
            return 404, error_body(404, f"there is no endpoint {name!r}")
        return 200, self._row(slot, endpoint)

    def _act(self, name: str, action: str) -> tuple[int, Any]:
        status, row = self._endpoint(name)
        if status == 200:
            self._router.lives.act(name, action)
            status, row = self._endpoint(name)
        return status, row


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
