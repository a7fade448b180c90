"""The life of endpoints: starting → verifying → ready ⇄ draining, and ejected on failure.

Evidence comes in with the time it came at: probes, what became of requests, canaries, operators,
a clock. Effects go out: moves to another state, and restarts to ask for. Two kinds of evidence
are kept apart:

- *Certain*: nobody listens there, it answers no probe and no request, its supervisor says so. It
  is ejected whoever else is, and what runs there moves on.
- *Statistical*: it fails too many requests, or far more than its peers, or is far slower. It gets
  no new requests while what runs there goes on; at most a share of its peers is out at once for
  such reasons, and never the last ready endpoint of a model: if all fail, routing goes on.

What was ejected comes back through verifying alone. Each ejection that follows soon doubles the
wait before it is tried again; being ready for long forgives them one by one. What an operator
holds out stays out, whatever the evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core import outliers
from infctl.core.breaker import REQUESTS_MIN
from infctl.core.fleet import State
from infctl.core.life import Cause, Life, Move, Restart, Spared

if TYPE_CHECKING:
    from infctl.core.fleet import Fleet
    from infctl.core.life import Effect

WAIT_S = 1.0
WAIT_S_MAX = 60.0
FORGIVE_S = 60.0
"""After the first ejection an endpoint is tried again in `WAIT_S`, twice as late after each further
one; every `FORGIVE_S` of being ready forgives one."""

WINDOW_S = 10.0
SPARED_S = 5.0
RESTART_AFTER_S = 30.0
"""How long requests that still run may put off the restart of an endpoint that failed softly."""

SLOW_S = 10.0
"""How long an endpoint must have been far slower than its peers."""

COMPARE_S = 2.0


class Settings(msgspec.Struct, frozen=True):
    """`probe_failures` in a row eject; `ejected_share_max` of peers may be out for statistical
    reasons. Engines live `speed` times faster than the clock."""

    probe_failures: int = 2
    ejected_share_max: float = 0.3
    speed: float = 1.0


class Lifecycle:
    """The lives of all endpoints of a fleet, by slot. The fleet's states are the caller's to
    change, as the effects say, before the next call."""

    def __init__(self, fleet: Fleet, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.lives: dict[int, Life] = {}
        self._fleet = fleet
        self._turn_at = self._compare_at = 0.0

    def joined(self, slot: int, now: float, before: Life | None = None) -> list[Effect]:
        """An endpoint came into the fleet; `before` is the life of the one it replaces under the
        same name, whose flaps it inherits, and an operator's hold."""
        life = self.lives[slot] = Life(now, forgiven_at=now)
        if before is None:
            return []
        life.flaps, life.forgiven_at = before.flaps, before.forgiven_at
        life.held, life.accepts_anew = before.held, before.accepts_anew
        if not life.held:
            return []
        return [self._move(slot, State.EJECTED, "held by an operator", now, Cause.OPERATOR)]

    def left(self, slot: int) -> None:
        """It is gone, and what was known of it with it."""
        self.lives.pop(slot, None)

    # --- what becomes of requests -----------------------------------------------------------------

    def answered(self, slot: int) -> None:
        """The endpoint answered a request."""
        life = self.lives.get(slot)
        if life is not None:
            breaker = life.breaker
            breaker.ok += 1
            breaker.streak = 0

    def failed(self, slot: int, now: float) -> list[Effect]:
        """The endpoint failed a request: 5xx, reset, timeout, broken off."""
        life = self._taking_traffic(slot)
        if life is None:
            return []
        life.breaker.fail()
        reason = life.breaker.tripped()
        return self._eject_if_room(slot, life, Cause.ERRORS, reason, now) if reason else []

    def refused(self, slot: int, reason: str, now: float) -> list[Effect]:
        """Nobody listens at its address."""
        if self._taking_traffic(slot) is None:
            return []
        return self._mute(slot, Cause.REFUSED, reason, now)

    def hung(self, slot: int, reason: str, now: float) -> list[Effect]:
        """It takes requests, and says nothing to any of them."""
        if self._taking_traffic(slot) is None:
            return []
        return self._mute(slot, Cause.HUNG, reason, now)

    def suspect(self, slot: int) -> bool:
        """Something speaks against the endpoint: the next failed probe is enough. Whether to
        probe now."""
        life = self._taking_traffic(slot)
        if life is None or life.suspected:
            return False
        life.suspected = True
        return True

    # --- probes, canaries, supervisors ------------------------------------------------------------

    def probed(
        self, slot: int, trouble: str | None, now: float, progressed: bool = False
    ) -> list[Effect]:
        """A probe came back; `trouble` is why it failed. One that `progressed` with its requests
        meanwhile is alive, only late."""
        life = self.lives.get(slot)
        if life is None:
            return []
        if trouble is None or progressed:
            life.probe_failures, life.suspected = 0, False
            return []
        life.probe_failures += 1
        enough = 1 if life.suspected else self.settings.probe_failures
        live = self._fleet.states[slot] in (State.READY, State.VERIFYING, State.DRAINING)
        if not live or life.probe_failures < enough:
            return []
        return self._mute(slot, Cause.PROBE, f"health probes fail: {trouble}", now)

    def unit_ended(self, slot: int, reason: str, now: float) -> list[Effect]:
        """The unit's supervisor says that it does not run."""
        if self._fleet.states[slot] in (State.STARTING, State.EJECTED):
            return []
        return self._eject(slot, self.lives[slot], Cause.UNIT, reason, now, abandon=True)

    def began_anew(self, slot: int, now: float) -> list[Effect]:
        """Its counters began anew: another process answers at its address, perhaps not the same."""
        if self._taking_traffic(slot) is None:
            return []
        return [self._move(slot, State.STARTING, "it was started again", now)]

    def due(self, slot: int, now: float) -> bool:
        """Whether a healthy endpoint may be tried now."""
        life = self.lives.get(slot)
        if life is None or life.held:
            return False
        state = self._fleet.states[slot]
        return state is State.STARTING or (state is State.EJECTED and now >= life.retry_at)

    def verifying(self, slot: int, now: float) -> list[Effect]:
        """A healthy endpoint that is what it should be: let canaries tell."""
        if not self.due(slot, now):
            return []
        return [self._move(slot, State.VERIFYING, "healthy", now)]

    def verified(self, slot: int, problem: str | None, now: float) -> list[Effect]:
        """The canaries are back; `problem` is what was wrong with them."""
        life = self.lives.get(slot)
        if life is None or self._fleet.states[slot] is not State.VERIFYING:
            return []
        if problem is None:
            life.restart_reason = None
            life.statistical = life.accepts_anew = False
            life.slow_since, life.forgiven_at = 0.0, now
            life.breaker.reset()
            return [self._move(slot, State.READY, "verified", now)]
        life.restart_reason = problem
        return [*self._eject(slot, life, Cause.CANARY, problem, now), *self._restart(slot, now)]

    def outvoted(self, slot: int, now: float) -> list[Effect]:
        """What it answered when it was verified is not what the others answer."""
        life = self._taking_traffic(slot)
        if life is None:
            return []
        return self._eject(slot, life, Cause.CANARY, "other endpoints answer otherwise", now)

    # --- operators --------------------------------------------------------------------------------

    def drain(self, slot: int, now: float) -> list[Effect]:
        """An operator wants no new requests there; what runs there finishes."""
        return self._hold(slot, State.DRAINING, "drain by an operator", now)

    def eject(self, slot: int, now: float) -> list[Effect]:
        """An operator wants it out, and what runs there elsewhere."""
        return self._hold(slot, State.EJECTED, "eject by an operator", now)

    def resume(self, slot: int, now: float) -> list[Effect]:
        """An operator wants it back: it is forgiven, and verified as soon as a probe succeeds."""
        life = self.lives[slot]
        held, life.held = life.held, False
        state = self._fleet.states[slot]
        if not held and state is not State.EJECTED:
            return []
        life.accepts_anew = life.accepts_anew or life.cause is Cause.CANARY
        life.flaps, life.retry_at, life.restart_reason = 0, now, None
        life.statistical = False
        return [self._move(slot, State.STARTING, "resume by an operator", now)]

    def _hold(self, slot: int, state: State, reason: str, now: float) -> list[Effect]:
        life = self.lives[slot]
        life.held, life.restart_reason, life.statistical = True, None, False
        if state is State.EJECTED:
            return [self._move(slot, state, reason, now, Cause.OPERATOR, abandon=True)]
        return [self._move(slot, state, reason, now)]

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Call about once a second: marks expire, outliers are found, restarts fall due."""
        effects: list[Effect] = []
        for slot, life in self.lives.items():
            if self._fleet.states[slot] is State.READY:
                self._forgive(life, now)
            elif life.restart_reason:
                effects += self._restart(slot, now)
        if now >= self._compare_at:
            self._compare_at = now + COMPARE_S / self.settings.speed
            for slots in outliers.groups(self._fleet, self.lives):
                effects += self._compare(slots, now)
        if now >= self._turn_at:
            self._turn_at = now + WINDOW_S / self.settings.speed
            for life in self.lives.values():
                life.breaker.turn()
        return effects

    def _forgive(self, life: Life, now: float) -> None:
        forgive_s = FORGIVE_S / self.settings.speed
        while life.flaps and now - life.forgiven_at >= forgive_s:
            life.flaps -= 1
            life.forgiven_at += forgive_s

    def _compare(self, slots: list[int], now: float) -> list[Effect]:
        found = outliers.failing({slot: self.lives[slot].breaker for slot in slots})
        if found is not None:
            slot, reason = found
            return self._eject_if_room(slot, self.lives[slot], Cause.OUTLIER, reason, now)
        slow = outliers.slow(self._fleet, slots)
        for slot in slots:
            life = self.lives[slot]
            life.slow_since = (life.slow_since or now) if slow and slot == slow[0] else 0.0
        if slow is None:
            return []
        life, long_s = self.lives[slow[0]], SLOW_S / self.settings.speed
        if now - life.slow_since < long_s or life.breaker.requests < REQUESTS_MIN:
            return []
        return self._eject_if_room(slow[0], life, Cause.SLOW, slow[1], now)

    # --- moving -----------------------------------------------------------------------------------

    def _taking_traffic(self, slot: int) -> Life | None:
        ready = slot < len(self._fleet) and self._fleet.states[slot] is State.READY
        return self.lives.get(slot) if ready else None

    def _mute(self, slot: int, cause: Cause, reason: str, now: float) -> list[Effect]:
        life = self.lives[slot]
        life.statistical = False
        effects = self._eject(slot, life, cause, reason, now, abandon=True)
        return [*effects, Restart(slot, reason, check=True)]

    def _eject_if_room(
        self, slot: int, life: Life, cause: Cause, reason: str, now: float
    ) -> list[Effect]:
        if now < life.spared_until:
            return []
        if not self._room(slot):
            life.spared_until = now + SPARED_S
            return [Spared(slot, reason)]
        if life.flaps:
            life.restart_reason = reason  # verifying did not cure it the last time
        life.statistical = True
        return self._eject(slot, life, cause, reason, now)

    def _eject(
        self, slot: int, life: Life, cause: Cause, reason: str, now: float, abandon: bool = False
    ) -> list[Effect]:
        life.flaps = min(life.flaps + 1, 32)
        wait_s = min(WAIT_S * 2.0 ** (life.flaps - 1), WAIT_S_MAX)
        life.retry_at = now + wait_s / self.settings.speed
        life.probe_failures, life.suspected = 0, False
        return [self._move(slot, State.EJECTED, reason, now, cause, abandon)]

    def _move(
        self,
        slot: int,
        state: State,
        reason: str,
        now: float,
        cause: Cause | None = None,
        abandon: bool = False,
    ) -> Move:
        life = self.lives[slot]
        life.since, life.reason = now, reason
        life.cause = cause or (life.cause if state is State.VERIFYING else None)
        return Move(slot, state, reason, cause, abandon)

    def _restart(self, slot: int, now: float) -> list[Effect]:
        """The restart that waits, once nothing runs there or it has waited for long enough."""
        life = self.lives[slot]
        patience_s = RESTART_AFTER_S / self.settings.speed
        cells = self._fleet.cells
        own = cells["inflight"][slot] - cells["foreign"][slot]
        busy = own > 0 and now - life.since < patience_s
        if busy or life.restart_reason is None:
            return []
        reason, life.restart_reason = life.restart_reason, None
        return [Restart(slot, reason)]

    def _room(self, slot: int) -> bool:
        """Whether one more may be out for statistical reasons."""
        endpoint = self._fleet.slots[slot]
        if endpoint is None:
            return False
        peers = [
            other
            for other, e in self._fleet
            if e.pool == endpoint.pool and e.models[:1] == endpoint.models[:1]
        ]
        out = sum(self._out(other) for other in peers)
        if out + 1 > max(1, int(self.settings.ejected_share_max * len(peers))):
            return False
        return all(self._others_serve(slot, model) for model in endpoint.models)

    def _out(self, slot: int) -> bool:
        life = self.lives.get(slot)
        return life is not None and life.statistical

    def _others_serve(self, slot: int, model: str) -> bool:
        fleet = self._fleet
        return any(
            model in e.models and fleet.states[other] is State.READY
            for other, e in fleet
            if other != slot
        )
