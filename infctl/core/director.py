"""The request machine: handle(event, now) → [Command].

Choice and in-flight accounting are one step, so a burst cannot herd onto one endpoint while its
metrics are a second old. What a dispatch will probably leave in an endpoint's cache enters the
prefix index at once; a request that fails takes it back. While every endpoint that may serve a
request is saturated or on its way up, the request waits here; whatever frees room lets it go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core import events as ev
from infctl.core.admission import Admission
from infctl.core.budget import Budget
from infctl.core.commands import Abort, Command, Dispatch, Reject
from infctl.core.fleet import Fleet, State
from infctl.core.flowcontrol import FlowControl
from infctl.core.homes import Homes
from infctl.core.inflight import Inflight
from infctl.core.latency import Latency
from infctl.core.learning import BYTES_PER_TOKEN, Experience
from infctl.core.ledger import Decision, Ledger, Row, rows
from infctl.core.prefix import PrefixIndex
from infctl.core.saturation import Saturation

if TYPE_CHECKING:
    from random import Random

    from infctl.core.fleet import Column, Endpoint
    from infctl.core.flowcontrol import Held
    from infctl.core.request import Request
    from infctl.core.scheduling import Choice, Pipeline

_COMING = (State.STARTING, State.EJECTED)
"""States of an endpoint that is worth waiting for."""

_KV_UNKNOWN_TOKENS = 400_000
_RETRIES_SAVED_MAX = 1000.0
"""Retries that quiet times save up: enough to move what ran on an endpoint that dies."""


class Settings(msgspec.Struct, frozen=True):
    """What of the profile the Director itself needs.

    At most `queue_max` requests wait at the router, each for `queue_s`, in as many classes as
    there are `priorities`. An endpoint with `backlog_s` of prompts ahead is saturated: some steps
    of the largest chunks engines compute at once, so that their prefill never runs dry.
    """

    attempts_max: int = 3
    retry_share: float = 0.2
    queue_max: int = 2000
    queue_s: float = 30.0
    priorities: tuple[str, ...] = ("interactive", "batch")
    backlog_s: float = 1.0


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
        self.inflight = Inflight(self.fleet, self.index)
        self.homes = Homes(self.fleet)
        self.latency = Latency(self.fleet)
        self.pipeline = pipeline
        self.settings = settings = settings or Settings()
        self.saturation = Saturation(self.fleet, settings.backlog_s * 1000.0)
        self.flow = FlowControl(len(settings.priorities), settings.queue_max)
        self._held = self.flow.held
        self.admission = Admission(
            self.fleet, pipeline, self.saturation, self.flow, settings.queue_s
        )
        self.retries = Budget(self.settings.retry_share, _RETRIES_SAVED_MAX)
        self.flights: dict[str, Flight] = {}
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
            ev.PeersReported: lambda event: self.inflight.reported(event),
            ev.PrefixesReported: lambda event: self.inflight.prefixes(event),
            ev.Tick: self._tick,
        }

    def handle(self, event: ev.Event, now: float) -> list[Command]:
        """Take in one event at monotonic time `now` (seconds); return what is to be done."""
        self.fleet.now_ms = now * 1000.0
        commands: list[Command] = self._handlers[type(event)](event)  # type: ignore[operator]
        if self._held:
            commands = commands + self._release_held()
        return commands

    def configure(self, pipeline: Pipeline, settings: Settings) -> None:
        """Go on by another profile: fleet, index, flights and what was learned stay."""
        self.pipeline = pipeline
        self.settings = settings
        self.retries.share = settings.retry_share
        self.admission.configure(pipeline, settings.queue_s, settings.queue_max)

    def explain(self, request: Request, now: float) -> tuple[list[Row], int]:
        """How every endpoint would rate for this request now, and the slot of the best (−1 where
        that does not decide); changes nothing."""
        self.fleet.now_ms = now * 1000.0
        cached = self._estimate(request)
        likely = self.homes.expect(request, cached, self.pipeline)
        choice = self.pipeline.preview(request, self.fleet, likely)
        return rows(tuple(self.fleet.slots), cached, choice, choice.slot), choice.slot

    # --- requests -----------------------------------------------------------------------------

    def _arrived(self, event: ev.RequestArrived) -> list[Command]:
        self.retries.earn()
        request = event.request
        if self._held and self.admission.behind(request):
            self.experience.estimate(request)
            return [*self.admission.hold(request)]
        cached, choice = self._choose(request)
        if choice is None:
            return self._unserved(request)
        if self.saturation.full(choice.slot) and not self.admission.has_room(request):
            # Full, but others are not: then the policy still knows best, for what is cached there
            # may be worth the wait.
            return [*self.admission.hold(request)]
        return [self._dispatch(request, 1, (), cached, choice)]

    def _estimate(self, request: Request) -> Column:
        """Fill in the prompt's tokens; return the tokens expected to hit at each slot."""
        ratio = self.experience.estimate(request)
        matched = self.index.match(request.blocks, len(self.fleet))
        matched /= ratio
        return matched

    def _choose(
        self, request: Request, tried: tuple[int, ...] = ()
    ) -> tuple[Column, Choice | None]:
        cached = self._estimate(request)
        expected = self.homes.expect(request, cached, self.pipeline)
        choice = self.pipeline.decide(request, self.fleet, expected, self._random, tried)
        if self._held and choice is not None and self.admission.hurries(request, choice.slot):
            avoided = (*tried, *self.admission.overfull())
            choice = self.pipeline.decide(request, self.fleet, expected, self._random, avoided)
        return cached, choice

    def _dispatch(
        self,
        request: Request,
        attempt: int,
        tried: tuple[int, ...],
        cached: Column,
        choice: Choice,
        queue_ms: float = 0.0,
    ) -> Command:
        fleet = self.fleet
        slot = choice.slot
        hit = float(cached[slot])
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
            queue_ms=queue_ms,
        )
        self.ledger.add(decision)
        self.flights[request.id] = flight = Flight(
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
        self.latency.dispatched(slot, uncached, fleet.now_ms)
        self.inflight.dispatched(slot, uncached, request.stream, flight.added)
        return Dispatch(request.id, slot, attempt, int(hit), queue_ms)

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

    def _unserved(
        self, request: Request, attempt: int = 1, tried: tuple[int, ...] = ()
    ) -> list[Command]:
        """Nothing ready may serve this: wait for what is on its way up, or say so."""
        fleet = self.fleet
        states = [fleet.states[slot] for slot, e in fleet if request.model in e.models]
        if any(state in _COMING for state in states):
            return [*self.admission.hold(request, attempt, tried)]
        if states or not len(fleet):
            return [Reject(request.id, 503, "no endpoint is ready to serve this", 1)]
        return [Reject(request.id, 404, f"The model `{request.model}` does not exist.")]

    def _release_held(self) -> list[Command]:
        return [command for held in self.admission.released() for command in self._resume(held)]

    def _resume(self, held: Held) -> list[Command]:
        request, queue_ms = held.request, self.fleet.now_ms - held.since_ms
        try:
            cached, choice = self._choose(request, held.tried)
        except Exception as error:  # a policy that raises costs this request, not whose event it is
            self.admission.on_bug(error)
            return [Reject(request.id, 500, "the routing policy failed", queue_ms=queue_ms)]
        if choice is None:
            return self._unserved(request, held.attempt, held.tried)
        return [self._dispatch(request, held.attempt, held.tried, cached, choice, queue_ms)]

    def _tick(self, _: ev.Tick) -> list[Command]:
        return [*self.admission.expired()]

    def _first_byte(self, event: ev.FirstByte) -> list[Command]:
        flight = self.flights.get(event.request_id)
        if flight is None or flight.first_byte_ms or not flight.request.stream:
            return []
        now_ms = self.fleet.now_ms
        flight.first_byte_ms = now_ms
        flight.decision.ttft_ms = now_ms - flight.dispatched_ms
        if self._current(flight):
            self.inflight.left_queue(flight.slot, flight.uncached)
            self.inflight.began(flight.slot)
            self.latency.first_byte(
                flight.slot, self._pool(flight.slot), flight.uncached, flight.dispatched_ms, now_ms
            )
        return []

    def _finished(self, event: ev.RequestFinished) -> list[Command]:
        flight = self._release(event.request_id)
        if flight is None:
            self.flow.remove(event.request_id)
            return []
        flight.decision.outcome = "answered" if event.ok else "answered with an error"
        if not event.ok:
            self.inflight.forgot(flight.slot, flight.added)
        elif event.usage is not None:
            self._learn(flight, event.usage)
        return []

    def _cancelled(self, event: ev.RequestCancelled) -> list[Command]:
        flight = self._release(event.request_id)
        if flight is None:
            self.flow.remove(event.request_id)
            return []
        flight.decision.outcome = "cancelled by the client"
        if not flight.first_byte_ms:
            self.inflight.forgot(flight.slot, flight.added)
        return [Abort(event.request_id, flight.slot)]

    def _leg_failed(self, event: ev.LegFailed) -> list[Command]:
        flight = self._release(event.request_id)
        if flight is None:
            if event.started:
                self.flow.remove(event.request_id)
            return []
        flight.decision.outcome = f"failed: {event.reason}"
        self.inflight.forgot(flight.slot, flight.added)
        request, tried = flight.request, (*flight.tried, flight.slot)
        if event.started and not event.resumable:
            return []
        if flight.attempt >= self.settings.attempts_max:
            message = f"{flight.attempt} endpoints failed; the last one: {event.reason}"
            return [Reject(request.id, 502, message)]
        if not self.retries.spend():
            message = f"the retry budget is used up; the endpoint failed: {event.reason}"
            return [Reject(request.id, 503, message, 1)]
        cached, choice = self._choose(request, tried)
        if choice is None:
            return self._unserved(request, flight.attempt + 1, tried)
        # It has waited already: no second time, even where every endpoint is full.
        return [self._dispatch(request, flight.attempt + 1, tried, cached, choice)]

    def _release(self, request_id: str) -> Flight | None:
        flight = self.flights.pop(request_id, None)
        if flight is None or not self._current(flight):
            return flight
        self.inflight.released(flight.slot)
        if not flight.first_byte_ms:
            self.inflight.began(flight.slot)
            if flight.request.stream:
                self.inflight.left_queue(flight.slot, flight.uncached)
                self.latency.left_queue(flight.slot, self.fleet.now_ms)
        return flight

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
        self.saturation.join(slot)
        self._bound_index(slot, endpoint, endpoint.kv_capacity_tokens)
        return []

    def _bound_index(self, slot: int, endpoint: Endpoint, kv_tokens: int) -> None:
        known = self.experience.bytes_per_token
        ratio = known(endpoint.models[0]) if endpoint.models else BYTES_PER_TOKEN
        self.index.set_capacity(slot, (kv_tokens or _KV_UNKNOWN_TOKENS) * ratio)

    def _left(self, event: ev.EndpointLeft) -> list[Command]:
        slot = self.fleet.remove(event.endpoint_id)
        if slot is not None:
            self.index.remove(slot)
            self.inflight.left(slot)
        return []

    def _changed(self, event: ev.EndpointChanged) -> list[Command]:
        slot = self.fleet.slot_of(event.endpoint_id)
        if slot is not None:
            if event.state is State.EJECTED:
                self.index.remove(slot)
            self.fleet.set_state(slot, event.state)
        return []

    def _reported(self, event: ev.LoadReported) -> list[Command]:
        slot = self.fleet.slot_of(event.endpoint_id)
        if slot is None:
            return []
        self.fleet.report(slot, event.load)
        self.inflight.counted(slot, event.load)
        self.homes.reported(slot)
        self.saturation.reported(slot, event.load)
        endpoint, load = self.fleet.slots[slot], event.load
        if endpoint is not None and load is not None and load.kv_capacity_tokens:
            self._bound_index(slot, endpoint, load.kv_capacity_tokens)
        return []

    def _pool(self, slot: int) -> str:
        endpoint = self.fleet.slots[slot]
        return endpoint.pool if endpoint else ""
