"""Probes endpoints: what is alive, what it is, and when it may take traffic."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from infctl.core.fleet import State
from infctl.engine import Probe
from infctl.router.collector import scrape
from infctl.router.upstream import own_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infctl.core.fleet import Endpoint
    from infctl.engine import Engine
    from infctl.profile.model import Health
    from infctl.router.canary import Canaries
    from infctl.router.driver import Router
    from infctl.router.upstream import Pool

UNKNOWN = "unknown"
"""The engine kind of an endpoint that has not been recognised yet."""

_GENERIC = "openai"
_INTERVAL_S_MIN = 0.25
_AGAIN_S = 0.25
"""How soon an endpoint that failed a probe is asked again."""

_WOKEN_S = 0.02


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card] = []


class Watch:
    """Watches one endpoint for as long as it is in the fleet.

    `unit_runs` is what the unit's supervisor says, where there is one: its word is needed to let
    an endpoint in, for what answers at the address may be an older generation, or the next.
    """

    def __init__(
        self,
        router: Router,
        endpoint: Endpoint,
        engines: Mapping[str, Engine],
        health: Health,
        speed: float,
        canaries: Canaries,
    ) -> None:
        self.unit_runs = True
        self._router = router
        self._machine = router.lives.machine
        self._endpoint = endpoint
        self._engines = engines
        self._canaries = canaries
        self._speed = speed
        self.configure(health)
        self._awake = asyncio.Event()
        self._failing = False
        self._tokens = 0.0
        self._said: tuple[str, dict[str, object]] | None = None

    def configure(self, health: Health) -> None:
        """Probe by other bounds from now on."""
        self._health = health
        self._interval_s = max(health.interval_s / self._speed, _INTERVAL_S_MIN)

    async def run(self) -> None:
        """Probe until cancelled. What goes wrong with one probe must not end the watch."""
        self._router.lives.wakers[self._endpoint.id] = self._awake.set
        while True:
            self._awake.clear()
            pool = self._pool()
            if pool is not None:
                try:
                    await self._once(pool)
                except Exception as error:
                    self._router.telemetry.bug(f"probing {self._endpoint.id}", error)
            await self._pause()

    async def _pause(self) -> None:
        wait_s = min(self._interval_s, _AGAIN_S) if self._failing else self._interval_s
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._awake.wait()
                await asyncio.sleep(_WOKEN_S)  # a flood of suspicions is no flood of probes

    def unit_ended(self, reason: str) -> None:
        """The unit's supervisor says that it does not run."""
        slot = self._slot()
        if slot is not None:
            effects = self._machine.unit_ended(slot, reason, self._router.now())
            self._router.lives.apply(effects)

    def _say(self, kind: str, **fields: object) -> None:
        """Log something about the endpoint, once until something else is to be said."""
        if self._said != (kind, fields):
            self._said = (kind, fields)
            self._router.telemetry.log(
                kind, endpoint=self._endpoint.id, url=self._endpoint.url, **fields
            )

    def _slot(self) -> int | None:
        return self._router.director.fleet.slot_of(self._endpoint.id)

    def _pool(self) -> Pool | None:
        slot = self._slot()
        return None if slot is None else self._router.pools.get(slot)

    def _state(self) -> State | None:
        slot = self._slot()
        return None if slot is None else self._router.director.fleet.states[slot]

    async def _once(self, pool: Pool) -> None:
        trouble = await self._probe(pool)
        self._failing = trouble is not None
        if trouble is not None:
            self._say("not_healthy", reason=trouble, note="trying again")
            return
        if self._due():
            await self._admit(pool)
        engine = self._engines.get(self._endpoint.engine)
        if engine is not None and self._state() is State.READY:
            pool = self._pool() or pool
            await scrape(self._router, self._endpoint, engine, pool, self._health.timeout_s)
            self._look_for_another()

    def _look_for_another(self) -> None:
        """Nothing but its counters may tell that another engine took over the address."""
        slot = self._slot()
        load = None if slot is None else self._router.director.fleet.loads[slot]
        tokens = load.prompt_tokens_total if load is not None else None
        before, self._tokens = self._tokens, self._tokens if tokens is None else tokens
        if slot is not None and tokens is not None and tokens < before:
            lives = self._router.lives
            lives.apply(self._machine.began_anew(slot, self._router.now()))
            self._awake.set()

    def _due(self) -> bool:
        slot = self._slot()
        return self.unit_runs and slot is not None and self._machine.due(slot, self._router.now())

    # --- alive? -----------------------------------------------------------------------------------

    async def _probe(self, pool: Pool) -> str | None:
        """Why the endpoint is not healthy, None if it is; the machine is told."""
        slot, began = self._slot(), self._router.now()
        if slot is None:
            return "it left the fleet"
        answered = self._answered(slot)
        try:
            trouble = await self._trouble(pool)
        except ConnectionRefusedError:
            trouble = "refuses connections"
            self._router.lives.refused(slot, trouble)
        except OSError as error:  # a fault of this machine says nothing of the endpoint
            return f"cannot probe: {error}"
        lives, now = self._router.lives, self._router.now()
        progressed = lives.heard(slot, began) or self._answered(slot) != answered
        lives.apply(self._machine.probed(slot, trouble, now, progressed))
        return trouble

    def _answered(self, slot: int) -> int:
        life = self._machine.lives.get(slot)
        return life.breaker.ok if life is not None else 0

    async def _trouble(self, pool: Pool) -> str | None:
        engine = self._engines.get(self._endpoint.engine)
        path = engine.health_path if engine else "/health"
        trouble, status = await self._status(pool, path)
        if status in (404, 405) and self._endpoint.engine in (UNKNOWN, _GENERIC):
            trouble, _ = await self._status(pool, "/v1/models")
        return trouble

    async def _status(self, pool: Pool, path: str) -> tuple[str | None, int]:
        try:
            status, _ = await pool.get(path, self._health.timeout_s)
        except OSError as error:
            if own_fault(error) or isinstance(error, ConnectionRefusedError):
                raise
            timed_out = isinstance(error, TimeoutError)
            return ("no answer in time" if timed_out else str(error)), 0
        return (None if status == 200 else f"{path} answers {status}"), status

    # --- what it should be? -----------------------------------------------------------------------

    async def _admit(self, pool: Pool) -> None:
        """Let an endpoint take traffic if it is what it should be and answers as it should."""
        try:
            _, body = await pool.get("/v1/models", self._health.timeout_s)
            cards = msgspec.json.decode(body, type=_Models).data
        except (OSError, msgspec.DecodeError) as error:
            self._say("no_models", reason=str(error) or "no answer in time", note="trying again")
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
        await self._verify()

    async def _verify(self) -> None:
        slot, pool = self._slot(), self._pool()
        if slot is None or pool is None:
            return
        lives, life = self._router.lives, self._machine.lives[slot]
        begun = self._machine.verifying(slot, self._router.now())
        if not begun:  # held by an operator since
            return
        lives.apply(begun)
        problem = None
        if self._health.verify and self._endpoint.models:
            engine = self._engines.get(self._endpoint.engine)
            try:
                problem = await self._canaries.check(
                    pool, self._endpoint, engine, anew=life.accepts_anew
                )
            except Exception as error:
                problem = f"canaries failed: {type(error).__name__}: {error}"
        if problem is not None:
            self._router.telemetry.stats(self._endpoint.id).canary_failures += 1
        if self._machine.lives.get(slot) is life:
            lives.apply(self._machine.verified(slot, problem, self._router.now()))

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
