"""Slow start: an endpoint that joins a fleet under load gets its share of requests gradually.

A newcomer has the shortest queue of all, so every policy would send it all that arrives until it
is as full as the others: a burst, just while it compiles kernels and its cache is empty. Instead it
earns `ramp / ready endpoints` of a request with each request dispatched anywhere, where the ramp
rises from a tenth to 1 within `duration_ms`, and takes none that it has not earned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from infctl.core.fleet import Fleet

_RAMP_MIN = 0.1
_CREDIT_MAX = 2.0


class _Start(msgspec.Struct):
    since_ms: float
    credit: float = 1.0


class SlowStart:
    """Which ready endpoints are new, and how many requests each may still take now."""

    def __init__(self, duration_ms: float) -> None:
        self.duration_ms = duration_ms
        self.starting: dict[int, _Start] = {}
        """By slot; empty almost always, which is all a request pays for."""
        self._ready_since_ms: dict[int, float] = {}

    def ready(self, slot: int, fleet: Fleet) -> None:
        """An endpoint may take traffic from now on. Where no peer has been ready for long, as at
        a fleet's start, all begin alike and nobody is slowed down."""
        now_ms = fleet.now_ms
        self._ready_since_ms.setdefault(slot, now_ms)
        if self.duration_ms > 0 and any(
            now_ms - since >= self.duration_ms
            for other, since in self._ready_since_ms.items()
            if other != slot and _peers(fleet, slot, other)
        ):
            self.starting[slot] = _Start(now_ms)

    def out(self, slot: int) -> None:
        """An endpoint takes no more traffic."""
        self._ready_since_ms.pop(slot, None)
        self.starting.pop(slot, None)

    def held_back(self, fleet: Fleet) -> tuple[int, ...]:
        """Before a dispatch: earn, let go of who has started, and return the slots to avoid."""
        ready = max(int(fleet.ready.sum()), 1)
        held = []
        for slot, start in list(self.starting.items()):
            age = (fleet.now_ms - start.since_ms) / self.duration_ms
            if age >= 1.0:
                del self.starting[slot]
                continue
            start.credit = min(start.credit + max(age, _RAMP_MIN) / ready, _CREDIT_MAX)
            if start.credit < 1.0:
                held.append(slot)
        return tuple(held)

    def took(self, slot: int) -> None:
        """A request was dispatched there."""
        start = self.starting.get(slot)
        if start is not None:
            start.credit = max(start.credit - 1.0, 0.0)


def _peers(fleet: Fleet, slot: int, other: int) -> bool:
    """Whether two endpoints share a model, and so requests."""
    mine, theirs = fleet.slots[slot], fleet.slots[other]
    return (
        mine is not None and theirs is not None and not set(mine.models).isdisjoint(theirs.models)
    )
