"""The request machine: handle(event, now) → [Command].

Choice and in-flight accounting are one step, so a burst cannot herd onto one endpoint while its
metrics are a second old. What a dispatch will probably leave in an endpoint's cache enters the
prefix index at once; a request that fails takes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core import events as ev
from infctl.core.budget import Budget
from infctl.core.commands import Abort, Command, Dispatch, Reject
from infctl.core.fleet import Fleet, State
from infctl.core.latency import Latency
from infctl.core.learning import BYTES_PER_TOKEN, Experience
from infctl.core.ledger import Decision, Ledger, Row, rows
from infctl.core.prefix import PrefixIndex
from infctl.core.slowstart import SlowStart

if TYPE_CHECKING:
    from random import Random

    from infctl.core.fleet import Column, Endpoint
    from infctl.core.request import Request
    from infctl.core.scheduling import Pipeline

_KV_UNKNOWN_TOKENS = 400_000
_RETRIES_SAVED_MAX = 1000.0
"""Retries that quiet times save up: enough to move what ran on an endpoint that dies."""


class Settings(msgspec.Struct, frozen=True):
    """What of the profile the Director itself needs."""

    attempts_max: int = 3
    retry_share: float = 0.2
    slow_start_s: float = 10.0


class Flight(msgspec.Struct, gc=False):
    """A request in the air: where it is, what was expected of it."""

    request: Request
    decision: Decision
    slot: int
    generation: int
    attempt: int
    cached: float
    uncached: float
    dispatched_ms: float
    added: list[int]
    tried: tuple[int, ...] = ()
    first_byte_ms: float = 0.0


class Director:
    """Owns the fleet, the prefix index, what was learned, and every request in flight."""

    def __init__(
        self, pipeline: Pipeline, random: Random, settings: Settings | None = None
    ) -> None:
        self.fleet = Fleet()
        self.index = PrefixIndex()
        self.latency = Latency(self.fleet)
        self.pipeline = pipeline
        self.settings = settings or Settings()
        self.retries = Budget(self.settings.retry_share, _RETRIES_SAVED_MAX)
        self.flights: dict[str, Flight] = {}
        self.slow_start = SlowStart(self.settings.slow_start_s * 1000.0)
        self.experience = Experience()
        self.ledger = Ledger()
        self._snapshot: tuple[Endpoint | None, ...] = ()
        self._snapshot_version = -1
        self._random = random
        self._handlers = {
            ev.RequestArrived: self._arrived,
            ev.FirstByte: self._first_byte,
            ev.RequestFinished: self._finished,
            ev.RequestCancelled: self._cancelled,
            ev.LegFailed: self._leg_failed,
            ev.EndpointJoined: self._joined,
            ev.EndpointLeft: self._left,
            ev.EndpointChanged: self._changed,
            ev.LoadReported: self._reported,
        }

    def handle(self, event: ev.Event, now: float) -> list[Command]:
        """Take in one event at monotonic time `now` (seconds); return what is to be done."""
        self.fleet.now_ms = now * 1000.0
        return self._handlers[type(event)](event)  # type: ignore[operator,no-any-return]

    def explain(self, request: Request, now: float) -> tuple[list[Row], int]:
        """How every endpoint would rate for this request now, and the slot of the best (−1 where
        that does not decide); changes nothing."""
        self.fleet.now_ms = now * 1000.0
        cached = self._estimate(request)
        choice = self.pipeline.preview(request, self.fleet, cached)
        return rows(tuple(self.fleet.slots), cached, choice, choice.slot), choice.slot

    # --- requests -----------------------------------------------------------------------------

    def _arrived(self, event: ev.RequestArrived) -> list[Command]:
        self.retries.earn()
        return [self._dispatch(event.request, 1, ())]

    def _estimate(self, request: Request) -> Column:
        """Fill in the prompt's tokens; return the tokens expected to hit at each slot."""
        ratio = self.experience.estimate(request)
        matched = self.index.match(request.blocks, len(self.fleet))
        matched /= ratio
        return matched

    def _dispatch(self, request: Request, attempt: int, tried: tuple[int, ...]) -> Command:
        fleet = self.fleet
        cached = self._estimate(request)
        slow_start = self.slow_start
        avoided = tried or (slow_start.held_back(fleet) if slow_start.starting else ())
        choice = self.pipeline.decide(request, fleet, cached, self._random, avoided)
        if choice is None:
            return self._refuse(request)
        slot = choice.slot
        if slow_start.starting:
            slow_start.took(slot)
        hit = float(cached[slot])
        cells = fleet.cells
        uncached = max(request.prompt_tokens - hit, 0.0)
        expected_ms = self._expected_ttft_ms(slot, uncached)
        decision = Decision(
            name=request.name,
            model=request.model,
            at_ms=fleet.now_ms,
            attempt=attempt,
            prompt_tokens=request.prompt_tokens,
            endpoints=self._endpoints(),
            cached=cached,
            choice=choice,
            expected_ttft_ms=expected_ms,
            expected_cached_tokens=hit,
        )
        self.ledger.add(decision)
        self.flights[request.id] = Flight(
            request=request,
            decision=decision,
            slot=slot,
            generation=fleet.generation[slot],
            attempt=attempt,
            cached=hit,
            uncached=uncached,
            dispatched_ms=fleet.now_ms,
            added=self.index.insert(slot, request.blocks),
            tried=tried,
        )
        cells["inflight"][slot] += 1.0
        if request.stream:
            cells["pending"][slot] += 1.0
            cells["pending_tokens"][slot] += uncached
        self.latency.dispatched(slot, uncached, fleet.now_ms)
        return Dispatch(request.id, slot, attempt, int(hit))

    def _endpoints(self) -> tuple[Endpoint | None, ...]:
        """The slots as a tuple that decisions share until the fleet changes."""
        if self._snapshot_version != self.fleet.version:
            self._snapshot_version = self.fleet.version
            self._snapshot = tuple(self.fleet.slots)
        return self._snapshot

    def _expected_ttft_ms(self, slot: int, uncached: float) -> float:
        cells, now = self.fleet.cells, self.fleet.now_ms
        queue_ms = max(cells["free_at_ms"][slot] - now, 0.0)
        own_ms = cells["overhead_ms"][slot] + uncached * cells["ms_per_token"][slot]
        return queue_ms + own_ms + cells["rtt_ms"][slot]

    def _refuse(self, request: Request) -> Reject:
        known = any(request.model in e.models for _, e in self.fleet)
        if known or not len(self.fleet):
            return Reject(request.id, 503, "no endpoint is ready to serve this", 1)
        message = f"The model `{request.model}` does not exist."
        return Reject(request.id, 404, message)

    def _first_byte(self, event: ev.FirstByte) -> list[Command]:
        flight = self.flights.get(event.request_id)
        if flight is None or flight.first_byte_ms or not flight.request.stream:
            return []
        now_ms = self.fleet.now_ms
        flight.first_byte_ms = now_ms
        flight.decision.ttft_ms = now_ms - flight.dispatched_ms
        if self._current(flight):
            self._leave_queue(flight)
            self.latency.first_byte(
                flight.slot, self._pool(flight.slot), flight.uncached, flight.dispatched_ms, now_ms
            )
        return []

    def _finished(self, event: ev.RequestFinished) -> list[Command]:
        flight = self._release(event.request_id)
        if flight is None:
            return []
        flight.decision.outcome = "answered" if event.ok else "answered with an error"
        if not event.ok:
            self.index.forget(flight.slot, flight.added)
        elif event.usage is not None:
            self._learn(flight, event.usage)
        return []

    def _cancelled(self, event: ev.RequestCancelled) -> list[Command]:
        flight = self._release(event.request_id)
        if flight is None:
            return []
        flight.decision.outcome = "cancelled by the client"
        if not flight.first_byte_ms:
            self.index.forget(flight.slot, flight.added)
        return [Abort(event.request_id, flight.slot)]

    def _leg_failed(self, event: ev.LegFailed) -> list[Command]:
        flight = self._release(event.request_id)
        if flight is None:
            return []
        flight.decision.outcome = f"failed: {event.reason}"
        self.index.forget(flight.slot, flight.added)
        request, tried = flight.request, (*flight.tried, flight.slot)
        if event.started:
            return []
        if flight.attempt >= self.settings.attempts_max:
            message = f"{flight.attempt} endpoints failed; the last one: {event.reason}"
            return [Reject(request.id, 502, message)]
        if not self.retries.spend():
            message = f"the retry budget is used up; the endpoint failed: {event.reason}"
            return [Reject(request.id, 503, message, 1)]
        return [self._dispatch(request, flight.attempt + 1, tried)]

    def _release(self, request_id: str) -> Flight | None:
        flight = self.flights.pop(request_id, None)
        if flight is None or not self._current(flight):
            return flight
        cells = self.fleet.cells
        cells["inflight"][flight.slot] -= 1.0
        if flight.request.stream and not flight.first_byte_ms:
            self._leave_queue(flight)
            self.latency.left_queue(flight.slot, self.fleet.now_ms)
        return flight

    def _leave_queue(self, flight: Flight) -> None:
        cells, slot = self.fleet.cells, flight.slot
        cells["pending"][slot] -= 1.0
        left = cells["pending_tokens"][slot] - flight.uncached
        cells["pending_tokens"][slot] = left if cells["pending"][slot] else 0.0

    def _current(self, flight: Flight) -> bool:
        """False once the endpoint left: its slot may belong to another one now."""
        return self.fleet.generation[flight.slot] == flight.generation and (
            self.fleet.slots[flight.slot] is not None
        )

    def _learn(self, flight: Flight, usage: ev.Usage) -> None:
        flight.decision.cached_tokens = usage.cached_tokens
        self.experience.learn(flight.request, usage, flight.cached)
        tokens = usage.completion_tokens or 0
        if tokens > 1 and flight.first_byte_ms and self._current(flight):
            took_ms = self.fleet.now_ms - flight.first_byte_ms
            beside = self.fleet.cells["inflight"][flight.slot] + 1.0
            pool = self._pool(flight.slot)
            self.latency.decoded(flight.slot, pool, beside, took_ms / (tokens - 1))

    # --- endpoints ----------------------------------------------------------------------------

    def _joined(self, event: ev.EndpointJoined) -> list[Command]:
        endpoint = event.endpoint
        if self.fleet.slot_of(endpoint.id) is not None:
            self._left(ev.EndpointLeft(endpoint.id))
        slot = self.fleet.add(endpoint, event.state)
        self.latency.join(slot, endpoint.pool)
        self._bound_index(slot, endpoint, endpoint.kv_capacity_tokens)
        if event.state is State.READY:
            self.slow_start.ready(slot, self.fleet)
        return []

    def _bound_index(self, slot: int, endpoint: Endpoint, kv_tokens: int) -> None:
        known = self.experience.bytes_per_token
        ratio = known(endpoint.models[0]) if endpoint.models else BYTES_PER_TOKEN
        self.index.set_capacity(slot, (kv_tokens or _KV_UNKNOWN_TOKENS) * ratio)

    def _left(self, event: ev.EndpointLeft) -> list[Command]:
        slot = self.fleet.remove(event.endpoint_id)
        if slot is not None:
            self.index.remove(slot)
            self.slow_start.out(slot)
        return []

    def _changed(self, event: ev.EndpointChanged) -> list[Command]:
        slot = self.fleet.slot_of(event.endpoint_id)
        if slot is not None:
            if event.state in (State.EJECTED, State.STARTING):
                self.index.remove(slot)
            self.fleet.set_state(slot, event.state)
            if event.state is State.READY:
                self.slow_start.ready(slot, self.fleet)
            else:
                self.slow_start.out(slot)
        return []

    def _reported(self, event: ev.LoadReported) -> list[Command]:
        slot = self.fleet.slot_of(event.endpoint_id)
        if slot is None:
            return []
        self.fleet.report(slot, event.load)
        endpoint, load = self.fleet.slots[slot], event.load
        if endpoint is not None and load is not None and load.kv_capacity_tokens:
            self._bound_index(slot, endpoint, load.kv_capacity_tokens)
        return []

    def _pool(self, slot: int) -> str:
        endpoint = self.fleet.slots[slot]
        return endpoint.pool if endpoint else ""
