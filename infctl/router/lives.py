"""Drives core.lifecycle: hands it what the router sees of endpoints, and does what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infctl.core.life import Move, Restart
from infctl.core.lifecycle import Lifecycle, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from infctl.core.fleet import Endpoint
    from infctl.core.life import Effect, Life
    from infctl.profile.model import Health
    from infctl.router.driver import Router


class Lives:
    """The lives of a router's endpoints. `restart` asks whoever runs an endpoint to restart it and
    returns whether there is somebody to ask; `wakers` make an endpoint's watch probe at once."""

    def __init__(self, router: Router, health: Health, speed: float = 1.0) -> None:
        self.machine = Lifecycle(router.director.fleet, _settings(health, speed))
        self.answered = self.machine.answered
        self.wakers: dict[str, Callable[[], None]] = {}
        self.restart: Callable[[Endpoint, Restart], bool] = lambda endpoint, restart: False
        self._router = router

    def configure(self, health: Health, speed: float) -> None:
        """Go by other bounds from now on."""
        self.machine.settings = _settings(health, speed)

    def of(self, endpoint_id: str) -> Life | None:
        """The life of an endpoint, None where there is none."""
        slot = self._router.director.fleet.slot_of(endpoint_id)
        return None if slot is None else self.machine.lives.get(slot)

    def joined(self, slot: int, before: Life | None) -> None:
        """An endpoint joined the fleet, perhaps in place of an older generation."""
        self.apply(self.machine.joined(slot, self._router.now(), before))

    def failed(self, slot: int) -> None:
        """The endpoint failed a request."""
        self.apply(self.machine.failed(slot, self._router.now()))

    def refused(self, slot: int, reason: str) -> None:
        """Nobody listens at the endpoint's address."""
        self.apply(self.machine.refused(slot, reason, self._router.now()))

    def hung(self, slot: int, reason: str) -> None:
        """The endpoint says nothing to any of its streams, however it answers probes."""
        self.apply(self.machine.hung(slot, reason, self._router.now()))

    def suspect(self, slot: int, reason: str) -> None:
        """Probe at once; the first failed probe ejects."""
        endpoint = self._router.director.fleet.slots[slot]
        if endpoint is not None and self.machine.suspect(slot):
            self._router.telemetry.log("suspected", endpoint=endpoint.id, reason=reason)
            wake = self.wakers.get(endpoint.id)
            if wake is not None:
                wake()

    def outvoted(self, endpoint_id: str) -> None:
        """The others' canary answers agree, and not with this endpoint's."""
        slot = self._router.director.fleet.slot_of(endpoint_id)
        if slot is not None:
            self.apply(self.machine.outvoted(slot, self._router.now()))

    def tick(self, now: float) -> None:
        """Call about once a second."""
        self.apply(self.machine.tick(now))

    def act(self, endpoint_id: str, action: str) -> None:
        """What an operator wants: drain, eject or resume."""
        slot = self._router.director.fleet.slot_of(endpoint_id)
        if slot is None:
            return
        acts = {"drain": self.machine.drain, "eject": self.machine.eject}
        self.apply(acts.get(action, self.machine.resume)(slot, self._router.now()))
        wake = self.wakers.get(endpoint_id)
        if wake is not None:
            wake()

    def heard(self, slot: int, since: float) -> bool:
        """Whether a stream there has moved since then."""
        return any(leg.begun and leg.heard > since for leg in self._router.at(slot))

    def describe(self, slot: int) -> dict[str, Any]:
        """Since when the endpoint is in its state, why, and in how long it is tried again."""
        life = self.machine.lives.get(slot)
        if life is None:
            return {}
        now = self._router.now()
        waits = life.cause is not None and not life.held
        return {
            "state_for_s": round(now - life.since, 1),
            "reason": life.reason,
            "retry_in_s": round(max(life.retry_at - now, 0.0), 1) if waits else None,
        }

    def apply(self, effects: Iterable[Effect]) -> None:
        """Do what the machine says."""
        for effect in effects:
            endpoint = self._router.director.fleet.slots[effect.slot]
            if endpoint is None:
                continue
            if isinstance(effect, Move):
                self._move(endpoint, effect)
            elif isinstance(effect, Restart):
                self._restart(endpoint, effect)
            else:
                note = "too many are out already"
                self._router.telemetry.log(
                    "spared", endpoint=endpoint.id, reason=effect.reason, note=note
                )

    def _move(self, endpoint: Endpoint, move: Move) -> None:
        if move.cause is not None:
            self._router.telemetry.stats(endpoint.id).ejections[move.cause.value] += 1
        self._router.change(endpoint.id, move.state, move.reason, abandon=move.abandon)

    def _restart(self, endpoint: Endpoint, restart: Restart) -> None:
        if self.restart(endpoint, restart):
            self._router.telemetry.stats(endpoint.id).restarts_asked += 1
            self._router.telemetry.log(
                "restart_asked",
                endpoint=endpoint.id,
                generation=endpoint.generation,
                reason=restart.reason,
            )


def _settings(health: Health, speed: float) -> Settings:
    """Where engines run `speed` times faster than life, waits are as much shorter."""
    return Settings(health.failures, health.ejected_share_max, speed=speed)
