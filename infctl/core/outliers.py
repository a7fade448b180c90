"""Which of several like endpoints is far worse than the others."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from infctl.core.breaker import REQUESTS_MIN
from infctl.core.fleet import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from infctl.core.breaker import Breaker
    from infctl.core.fleet import Fleet

SHARE = 0.2
TIMES = 3.0
"""An outlier fails at least this share of requests and so many times the share of its peers."""

SLOW_TIMES = 3.0
_PROMPT_TOKENS = 1000.0


def groups(fleet: Fleet, slots: Iterable[int]) -> list[list[int]]:
    """Ready endpoints that can be compared: of one pool and model, two or more."""
    found: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for slot in slots:
        endpoint = fleet.slots[slot]
        if endpoint is not None and fleet.states[slot] is State.READY:
            found[endpoint.pool, endpoint.models[:1]].append(slot)
    return [group for group in found.values() if len(group) > 1]


def failing(breakers: Mapping[int, Breaker]) -> tuple[int, str] | None:
    """The one that fails far more of its requests than its peers do, and why it is thought so."""
    worst = max(breakers, key=lambda slot: breakers[slot].share())
    mine = breakers[worst]
    others = [breaker for slot, breaker in breakers.items() if slot != worst]
    requests = sum(breaker.requests for breaker in others)
    if mine.requests < REQUESTS_MIN or requests < REQUESTS_MIN:
        return None
    usual = sum(breaker.failures for breaker in others) / requests
    if mine.share() < max(SHARE, TIMES * usual):
        return None
    said = f"failed {mine.failures} of {mine.requests} requests, its peers {usual:.0%} of theirs"
    return worst, said


def slow(fleet: Fleet, slots: list[int]) -> tuple[int, str] | None:
    """The one that is far slower than its peers, by what core.latency has learned of a prompt of
    average length and a decode step. Endpoints outside a pool may well run on different hardware,
    so they are not compared."""
    endpoint = fleet.slots[slots[0]]
    if len(slots) < 3 or endpoint is None or not endpoint.pool:
        return None
    fixed_ms, per_token = fleet.cells["fixed_ms"], fleet.cells["ms_per_token"]
    costs = {slot: fixed_ms[slot] + _PROMPT_TOKENS * per_token[slot] for slot in slots}
    worst = max(slots, key=lambda slot: costs[slot])
    usual = sorted(costs.values())[(len(slots) - 1) // 2]
    if usual <= 0 or costs[worst] < SLOW_TIMES * usual:
        return None
    return worst, f"is {costs[worst] / usual:.1f} times slower than its peers"
