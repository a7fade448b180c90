"""Which endpoints there are: a fixed list of URLs, or the units of a fleet on this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infctl import state
from infctl.core.fleet import Endpoint, State
from infctl.errors import InfctlError, UsageError
from infctl.router.health import UNKNOWN, Watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infctl.actuator import UnitStatus
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


class Discovery:
    """Keeps the router's endpoints, and a watch on each, in step with what there is."""

    def __init__(
        self, router: Router, engines: Mapping[str, Engine], health: Health, speed: float = 1.0
    ) -> None:
        self._router = router
        self._engines = engines
        self._health = health
        self._speed = speed
        self._known: dict[str, tuple[Endpoint, asyncio.Task[None]]] = {}
        self._watches: dict[str, Watch] = {}

    def configure(self, health: Health) -> None:
        """Probe by other bounds from now on."""
        self._health = health
        for watch in self._watches.values():
            watch.configure(health)

    def update(self, endpoints: Sequence[Endpoint]) -> None:
        """Join what is new or has become another, let go of what is gone."""
        wanted = {e.id: e for e in endpoints}
        for name in [n for n in self._known if n not in wanted]:
            self._forget(name)
        for name, endpoint in wanted.items():
            known = self._known.get(name)
            if known is None or known[0] != endpoint:
                if known is not None:
                    known[1].cancel()
                self._router.join(endpoint, State.STARTING)
                watch = Watch(self._router, endpoint, self._engines, self._health, self._speed)
                task = asyncio.get_running_loop().create_task(watch.run())
                self._known[name] = (endpoint, task)
                self._watches[name] = watch

    def _forget(self, name: str) -> None:
        _, task = self._known.pop(name)
        self._watches.pop(name, None)
        task.cancel()
        self._router.leave(name)
        self._router.telemetry.forget(name)

    async def follow_state(self, name: str, context_tokens: Mapping[str, int]) -> None:
        """Follow the state of a fleet on this machine until cancelled. A state file that cannot
        be read keeps what is known, and is logged once."""
        complained = False
        while True:
            try:
                units = state.load(name).units
                complained = False
            except InfctlError as error:
                if not complained:
                    self._router.telemetry.log("state_unreadable", error=str(error))
                complained = True
            else:
                alive = [u for u in units if u.url and u.state not in _GONE]
                self.update([from_unit(u, context_tokens) for u in alive])
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """Stop watching."""
        for _, task in self._known.values():
            task.cancel()
