"""Probes endpoints: what is alive, what it is, and when it may take traffic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from infctl.core.fleet import State
from infctl.engine import Probe
from infctl.router.collector import scrape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infctl.core.fleet import Endpoint
    from infctl.engine import Engine
    from infctl.profile.model import Health
    from infctl.router.driver import Router
    from infctl.router.upstream import Pool

UNKNOWN = "unknown"
"""The engine kind of an endpoint that has not been recognised yet."""

_GENERIC = "openai"


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card] = []


class Watch:
    """Watches one endpoint for as long as it is in the fleet."""

    def __init__(
        self,
        router: Router,
        endpoint: Endpoint,
        engines: Mapping[str, Engine],
        health: Health,
        speed: float,
    ) -> None:
        self._router = router
        self._endpoint = endpoint
        self._engines = engines
        self._speed = speed
        self.configure(health)
        self._failures = 0
        self._trouble = ""
        self._said: tuple[str, dict[str, object]] | None = None

    def configure(self, health: Health) -> None:
        """Probe by other bounds from now on."""
        self._health = health
        self._interval_s = max(health.interval_s / self._speed, 0.25)

    async def run(self) -> None:
        """Probe until cancelled. What goes wrong with one probe must not end the watch."""
        while True:
            pool = self._pool()
            if pool is not None:
                try:
                    await self._once(pool)
                except Exception as error:
                    self._router.telemetry.bug(f"probing {self._endpoint.id}", error)
            await asyncio.sleep(self._interval_s)

    def _say(self, kind: str, **fields: object) -> None:
        """Log something about the endpoint, once until something else is to be said."""
        if self._said != (kind, fields):
            self._said = (kind, fields)
            self._router.telemetry.log(
                kind, endpoint=self._endpoint.id, url=self._endpoint.url, **fields
            )

    def _pool(self) -> Pool | None:
        slot = self._router.director.fleet.slot_of(self._endpoint.id)
        return None if slot is None else self._router.pools.get(slot)

    def _state(self) -> State | None:
        slot = self._router.director.fleet.slot_of(self._endpoint.id)
        return None if slot is None else self._router.director.fleet.states[slot]

    async def _once(self, pool: Pool) -> None:
        healthy = await self._alive(pool)
        if not healthy:
            self._failures += 1
            self._say("not_healthy", reason=self._trouble, note="trying again")
            if self._failures >= self._health.failures and self._state() is State.READY:
                reason = f"{self._failures} health probes failed in a row"
                self._router.change(self._endpoint.id, State.EJECTED, reason)
            return
        self._failures = 0
        if self._state() in (State.STARTING, State.EJECTED):
            await self._admit(pool)
        engine = self._engines.get(self._endpoint.engine)
        if engine is not None and self._state() is State.READY:
            pool = self._pool() or pool
            await scrape(self._router, self._endpoint, engine, pool, self._health.timeout_s)

    async def _alive(self, pool: Pool) -> bool:
        engine = self._engines.get(self._endpoint.engine)
        path = engine.health_path if engine else "/health"
        status = await self._status(pool, path)
        if status in (404, 405) and self._endpoint.engine in (UNKNOWN, _GENERIC):
            status = await self._status(pool, "/v1/models")
        return status == 200

    async def _status(self, pool: Pool, path: str) -> int:
        try:
            status, _ = await pool.get(path, self._health.timeout_s)
        except OSError as error:
            timed_out = isinstance(error, TimeoutError)
            self._trouble = "no answer in time" if timed_out else str(error)
            return 0
        self._trouble = f"{path} answers {status}"
        return status

    async def _admit(self, pool: Pool) -> None:
        """Let an endpoint take traffic if it is what it should be."""
        try:
            _, body = await pool.get("/v1/models", self._health.timeout_s)
            cards = msgspec.json.decode(body, type=_Models).data
        except (OSError, msgspec.DecodeError):
            return
        if self._endpoint.engine == UNKNOWN:
            await self._recognise(pool, body)
        if not self._endpoint.models:
            self._learn_models(cards)
        names = {card.id for card in cards}
        if self._endpoint.models and names.isdisjoint(self._endpoint.models):
            serves = ",".join(sorted(names))
            self._say("wrong_model", serves=serves, wanted=self._endpoint.models[0])
            return
        self._said = None
        self._router.change(self._endpoint.id, State.READY, "healthy")

    async def _recognise(self, pool: Pool, models: bytes) -> None:
        try:
            status, text = await pool.get("/metrics", self._health.timeout_s)
        except OSError:
            status, text = 0, b""
        probe = Probe(models, text.decode(errors="replace") if status == 200 else "")
        kinds = (k for k, e in self._engines.items() if k != _GENERIC and e.recognises(probe))
        kind = next(kinds, _GENERIC)
        if kind == _GENERIC:
            note = "routed on in-flight requests and prefixes alone"
            self._say("unrecognised_engine", note=note)
        self._replace(engine=kind)

    def _learn_models(self, cards: list[_Card]) -> None:
        if cards:
            longest = max((c.max_model_len or 0 for c in cards), default=0)
            self._replace(models=tuple(c.id for c in cards), context_tokens=longest)

    def _replace(self, **changes: object) -> None:
        """Join again with what was learned; nothing runs there yet."""
        self._endpoint = msgspec.structs.replace(self._endpoint, **changes)
        self._router.join(self._endpoint, State.STARTING)
