"""Which endpoints there are: a fixed list of URLs, or the units of a fleet on this machine."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from infctl import state
from infctl.actuator import RestartRequest
from infctl.core.fleet import Endpoint, State
from infctl.errors import InfctlError, UsageError
from infctl.router.canary import Canaries
from infctl.router.health import UNKNOWN, Watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infctl.actuator import UnitStatus
    from infctl.core.life import Restart
    from infctl.engine import Engine
    from infctl.profile.model import Health
    from infctl.router.driver import Router

_POLL_S = 0.5
_GONE = ("stopped", "failed")


def from_urls(urls: Sequence[str]) -> list[Endpoint]:
    """Endpoints nothing is known of but their address. Raises UsageError."""
    endpoints: dict[str, Endpoint] = {}
    for url in urls:
        parts = urlsplit((url if "//" in url else f"http://{url}").rstrip("/"))
        try:
            port = parts.port
        except ValueError:
            port = None
        if "@" in parts.netloc:
            raise UsageError(
                "an endpoint's URL holds no credentials: it becomes a name that clients see",
                where="--endpoint",
            )
        known = parts.scheme in ("http", "https")
        if not known or not parts.hostname or parts.path or parts.query or not port:
            raise UsageError(
                f"{url!r} is not an endpoint",
                where="--endpoint",
                hint="Give scheme, host and port alone: http://127.0.0.1:8001",
            )
        endpoints[parts.netloc] = Endpoint(
            unit=parts.netloc, url=f"{parts.scheme}://{parts.netloc}", models=(), engine=UNKNOWN
        )
    return list(endpoints.values())


def from_unit(unit: UnitStatus, context_tokens: Mapping[str, int]) -> Endpoint:
    """The endpoint a unit exposes. `context_tokens` by model name, from the profile."""
    return Endpoint(
        unit=unit.name,
        url=unit.url,
        models=unit.models,
        generation=unit.generation,
        revision=unit.revision,
        role=unit.role,
        pool=unit.pool,
        cluster=unit.cluster,
        engine=unit.engine,
        rtt_ms=unit.rtt_ms,
        kv_capacity_tokens=unit.kv_capacity_tokens,
        context_tokens=context_tokens.get(unit.models[0], 0) if unit.models else 0,
    )


class _Known(NamedTuple):
    endpoint: Endpoint
    watch: Watch
    task: asyncio.Task[None]


class Discovery:
    """Keeps the router's endpoints, and a watch on each, in step with what there is."""

    def __init__(
        self, router: Router, engines: Mapping[str, Engine], health: Health, speed: float = 1.0
    ) -> None:
        self._router = router
        self._engines = engines
        self._health = health
        self._speed = speed
        self._canaries = Canaries(router.telemetry.log)
        self._known: dict[str, _Known] = {}
        self._canaries.outvoted = router.lives.outvoted

    def configure(self, health: Health) -> None:
        """Probe by other bounds from now on."""
        self._health = health
        for known in self._known.values():
            known.watch.configure(health)

    def update(self, endpoints: Sequence[Endpoint]) -> None:
        """Join what is new or has become another, let go of what is gone."""
        wanted = {e.id: e for e in endpoints}
        for name in [n for n in self._known if n not in wanted]:
            self._forget(name)
        for name, endpoint in wanted.items():
            known = self._known.get(name)
            if known is None or known.endpoint != endpoint:
                if known is not None:
                    known.task.cancel()
                self._join(name, endpoint)

    def _join(self, name: str, endpoint: Endpoint) -> None:
        self._router.join(endpoint, State.STARTING)
        watch = Watch(
            self._router, endpoint, self._engines, self._health, self._speed, self._canaries
        )
        task = asyncio.get_running_loop().create_task(watch.run())
        self._known[name] = _Known(endpoint, watch, task)

    def _forget(self, name: str) -> None:
        self._known.pop(name).task.cancel()
        self._router.leave(name)
        self._router.lives.wakers.pop(name, None)
        self._router.telemetry.forget(name)

    async def follow_state(self, name: str, context_tokens: Mapping[str, int]) -> None:
        """Follow the state of a fleet on this machine until cancelled. A state file that cannot
        be read keeps what is known, and is logged once."""
        self._router.lives.restart = partial(_ask_for_restart, name)
        complained = kept = False
        while True:
            try:
                fleet = state.load(name)
                complained = False
            except InfctlError as error:
                if not complained:
                    self._router.telemetry.log("state_unreadable", error=str(error))
                complained = True
            else:
                if not kept:
                    file = state.path(name) / "fingerprints.json"
                    self._canaries.fingerprints.keep(file, fleet.owner_started)
                    kept = True
                self._follow(fleet.units, context_tokens)
            await asyncio.sleep(_POLL_S)

    def _follow(self, units: Sequence[UnitStatus], context_tokens: Mapping[str, int]) -> None:
        alive = [u for u in units if u.url and u.state not in _GONE]
        self.update([from_unit(u, context_tokens) for u in alive])
        for unit in alive:
            watch = self._known[unit.name].watch
            watch.unit_runs = unit.state == State.READY.value
            if unit.state == State.EJECTED.value:
                reason = (unit.error or "it ended").partition("\n")[0]
                watch.unit_ended(f"its supervisor says: {reason}")

    def close(self) -> None:
        """Stop watching."""
        for known in self._known.values():
            known.task.cancel()


def _ask_for_restart(fleet: str, endpoint: Endpoint, restart: Restart) -> bool:
    """Leave word for the unit's supervisor, naming the generation that is meant."""
    try:
        request = RestartRequest(endpoint.generation, restart.reason, restart.check)
        state.ask_for_restart(fleet, endpoint.unit, request)
    except InfctlError:
        return False
    return True
