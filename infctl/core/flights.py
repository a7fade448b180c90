"""Requests in the air, and what they add up to at each endpoint.

Choice and accounting are one step. What a dispatch will probably leave in an endpoint's cache
enters the prefix index at once; what fails takes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core.accuracy import Accuracy
from infctl.core.inflight import Inflight
from infctl.core.ledger import Decision, Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infctl.core.events import Usage
    from infctl.core.fleet import Column, Endpoint, Fleet
    from infctl.core.latency import Latency
    from infctl.core.learning import Experience
    from infctl.core.prefix import PrefixIndex
    from infctl.core.request import Request
    from infctl.core.scheduling import Choice


class Flight(msgspec.Struct, gc=False):
    """A request in the air: where it is, what was expected of it. `prompt_tokens` are whole ones,
    as counted in: the request's own may be estimated anew before it lands."""

    request: Request
    decision: Decision
    slot: int
    generation: int
    attempt: int
    prompt_tokens: float
    cached: float
    uncached: float
    dispatched_ms: float
    added: list[int]
    tried: tuple[int, ...] = ()
    first_byte_ms: float = 0.0


class Flights:
    """Every flight by its key: the request's id, or another for a second one of a request.
    `accuracy` of predictions by pool; a pool has endpoints, so their number is bounded."""

    def __init__(
        self, fleet: Fleet, index: PrefixIndex, latency: Latency, experience: Experience
    ) -> None:
        self.ledger = Ledger()
        self.inflight = Inflight(fleet, index)
        self.accuracy: dict[str, Accuracy] = {}
        self._fleet = fleet
        self._index = index
        self._latency = latency
        self._experience = experience
        self._flights: dict[str, Flight] = {}
        self._snapshot: tuple[Endpoint | None, ...] = ()
        self._snapshot_version = -1

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: str) -> bool:
        return key in self._flights

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    def get(self, key: str) -> Flight | None:
        """A flight, if it is in the air."""
        return self._flights.get(key)

    def launch(
        self,
        key: str,
        request: Request,
        attempt: int,
        tried: tuple[int, ...],
        cached: Column,
        choice: Choice,
        queue_ms: float,
    ) -> Flight:
        """Count a request in where it was decided to go."""
        fleet, slot = self._fleet, choice.slot
        hit = float(cached[slot])
        uncached = max(request.prompt_tokens - hit, 0.0)
        decision = Decision(
            name=request.name,
            model=request.model,
            at_ms=fleet.now_ms,
            attempt=attempt,
            prompt_tokens=request.prompt_tokens,
            endpoints=self._endpoints(),
            cached=cached,
            choice=choice,
            expected_ttft_ms=self._expected_ttft_ms(slot, uncached),
            expected_cached_tokens=hit,
            queue_ms=queue_ms,
        )
        self.ledger.add(decision)
        flight = self._flights[key] = Flight(
            request=request,
            decision=decision,
            slot=slot,
            generation=fleet.generation[slot],
            attempt=attempt,
            prompt_tokens=float(int(request.prompt_tokens)),
            cached=hit,
            uncached=uncached,
            dispatched_ms=fleet.now_ms,
            added=self._index.insert(slot, request.blocks),
            tried=tried,
        )
        self._latency.dispatched(slot, uncached, fleet.now_ms)
        self.inflight.dispatched(slot, flight.prompt_tokens, uncached, request.stream, flight.added)
        return flight

    def _endpoints(self) -> tuple[Endpoint | None, ...]:
        """The slots as a tuple that decisions share until the fleet changes."""
        if self._snapshot_version != self._fleet.version:
            self._snapshot_version = self._fleet.version
            self._snapshot = tuple(self._fleet.slots)
        return self._snapshot

    def _expected_ttft_ms(self, slot: int, uncached: float) -> float:
        cells, now = self._fleet.cells, self._fleet.now_ms
        queue_ms = max(cells["free_at_ms"][slot] - now, 0.0)
        own_ms = cells["overhead_ms"][slot] + uncached * cells["ms_per_token"][slot]
        return queue_ms + own_ms + cells["rtt_ms"][slot]

    def first_byte(self, key: str) -> None:
        """A stream's prefill is over."""
        flight = self._flights.get(key)
        if flight is None or flight.first_byte_ms or not flight.request.stream:
            return
        now_ms = self._fleet.now_ms
        flight.first_byte_ms = now_ms
        decision = flight.decision
        decision.ttft_ms = ttft_ms = now_ms - flight.dispatched_ms
        if self.current(flight):
            pool = self._pool(flight.slot)
            error = self._accuracy(pool).ttft_s
            error.add(decision.expected_ttft_ms / 1000.0, ttft_ms / 1000.0)
            self.inflight.left_queue(flight.slot, flight.uncached)
            self.inflight.began(flight.slot)
            self._latency.first_byte(
                flight.slot, pool, flight.uncached, flight.dispatched_ms, now_ms
            )

    def land(self, key: str, outcome: str, forget: bool = False) -> Flight | None:
        """Count a flight out, with what became of it; `forget` what it was to leave in a cache."""
        flight = self._flights.pop(key, None)
        if flight is None:
            return None
        flight.decision.outcome = outcome
        if forget:
            self.inflight.forgot(flight.slot, flight.added)
        if not self.current(flight):
            return flight
        self.inflight.released(flight.slot, flight.prompt_tokens)
        if not flight.first_byte_ms:
            self.inflight.began(flight.slot)
            if flight.request.stream:
                self.inflight.left_queue(flight.slot, flight.uncached)
                self._latency.left_queue(flight.slot, self._fleet.now_ms)
        return flight

    def rename(self, key: str, new: str) -> None:
        """Let a flight go on under another key."""
        flight = self._flights.pop(key, None)
        if flight is not None:
            self._flights[new] = flight

    def learn(self, flight: Flight, usage: Usage) -> None:
        """Take in what the engine said of a flight that landed well."""
        flight.decision.cached_tokens = usage.cached_tokens
        self._experience.learn(flight.request, usage, flight.cached)
        if not self.current(flight):
            return
        if usage.prompt_tokens and usage.cached_tokens is not None:
            error = self._accuracy(self._pool(flight.slot)).cached_tokens
            error.add(min(flight.cached, usage.prompt_tokens), usage.cached_tokens)
        tokens = usage.completion_tokens or 0
        if tokens > 1 and flight.first_byte_ms:
            took_ms = self._fleet.now_ms - flight.first_byte_ms
            beside = self._fleet.cells["inflight"][flight.slot] + 1.0
            pool = self._pool(flight.slot)
            self._latency.decoded(flight.slot, pool, beside, took_ms / (tokens - 1))

    def _accuracy(self, pool: str) -> Accuracy:
        found = self.accuracy.get(pool)
        if found is None:
            found = self.accuracy[pool] = Accuracy()
        return found

    def current(self, flight: Flight) -> bool:
        """False once the endpoint left: its slot may belong to another one now."""
        return self._fleet.generation[flight.slot] == flight.generation and (
            self._fleet.slots[flight.slot] is not None
        )

    def _pool(self, slot: int) -> str:
        endpoint = self._fleet.slots[slot]
        return endpoint.pool if endpoint else ""
