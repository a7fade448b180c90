"""The request machine: handle(event, now) → [Command].

Choice and in-flight accounting (core.flights) are one step, so a burst cannot herd onto one
endpoint while its metrics are a second old. While every endpoint that may serve a request is
saturated or on its way up, the request waits here; whatever frees room lets it go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core import events as ev
from infctl.core.admission import Admission
from infctl.core.budget import Budget
from infctl.core.commands import Abort, Command, Dispatch, Hedge, Reject
from infctl.core.fleet import Fleet, State
from infctl.core.flights import Flights
from infctl.core.flowcontrol import FlowControl
from infctl.core.homes import Homes
from infctl.core.inflight import Inflight
from infctl.core.latency import Latency
from infctl.core.learning import BYTES_PER_TOKEN, Experience
from infctl.core.ledger import Row, rows
from infctl.core.prefix import PrefixIndex
from infctl.core.saturation import Saturation
from infctl.core.slowstart import SlowStart

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

_HEDGES_SAVED_MAX = 10.0
_HEDGE_MS = 200.0
_HEDGE_TIMES = 3.0
"""A first byte is overdue after so much more than expected."""

_RESPONSE_GONE = (
    "The response that previous_response_id names is not found: the endpoint that kept it is gone "
    "or not ready."
)

_HEDGE = "+hedge"
"""Behind a request's id, the key of its second flight. No id of ours holds a plus sign."""


class Settings(msgspec.Struct, frozen=True):
    """What of the profile the Director itself needs.

    At most `queue_max` requests wait at the router, each for `queue_s`, in as many classes as
    there are `priorities`; without `hold` only for endpoints on their way up, never for room. An
    endpoint with `backlog_s` of prompts ahead is saturated: some steps of the largest chunks
    engines compute at once, so that their prefill never runs dry.
    """

    attempts_max: int = 3
    retry_share: float = 0.2
    hold: bool = True
    queue_max: int = 2000
    queue_s: float = 30.0
    priorities: tuple[str, ...] = ("interactive", "batch")
    backlog_s: float = 1.0
    hedge_share: float = 0.0
    slow_start_s: float = 10.0


class Director:
    """Owns the fleet, the prefix index, what was learned, and every request in flight."""

    def __init__(
        self, pipeline: Pipeline, random: Random, settings: Settings | None = None
    ) -> None:
        self.fleet = Fleet()
        self.index = PrefixIndex()
        self.homes = Homes(self.fleet)
        self.latency = Latency(self.fleet)
        self.pipeline = pipeline
        self.settings = settings = settings or Settings()
        self.saturation = Saturation(self.fleet, settings.backlog_s * 1000.0)
        self.flow = FlowControl(len(settings.priorities), settings.queue_max)
        self._held = self.flow.held
        self.admission = Admission(
            self.fleet, pipeline, self.saturation, self.flow, settings.queue_s, settings.hold
        )
        self.retries = Budget(self.settings.retry_share, _RETRIES_SAVED_MAX)
        self.hedges = Budget(self.settings.hedge_share, _HEDGES_SAVED_MAX)
        self.slow_start = SlowStart(self.settings.slow_start_s * 1000.0)
        self.experience = Experience()
        self.flights = Flights(self.fleet, self.index, self.latency, self.experience)
        self.ledger = self.flights.ledger
        self._random = random
        self._handlers = {
            ev.RequestArrived: self._arrived,
            ev.FirstByte: self._first_byte,
            ev.RequestFinished: self._finished,
            ev.RequestCancelled: self._cancelled,
            ev.LegFailed: self._leg_failed,
            ev.FirstByteOverdue: self._overdue,
            ev.HedgeSettled: self._hedge_settled,
            ev.Tokenised: self._tokenised,
            ev.EndpointJoined: self._joined,
            ev.EndpointLeft: self._left,
            ev.EndpointChanged: self._changed,
            ev.LoadReported: self._reported,
            ev.PeersReported: lambda event: self.inflight.reported(event),
            ev.PrefixesReported: lambda event: self.inflight.prefixes(event),
            ev.Tick: self._tick,
        }

    @property
    def inflight(self) -> Inflight:
        """How many requests each endpoint has; several workers put theirs together."""
        return self.flights.inflight

    @inflight.setter
    def inflight(self, inflight: Inflight) -> None:
        self.flights.inflight = inflight

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
        self.hedges.share = settings.hedge_share
        self.slow_start.duration_ms = settings.slow_start_s * 1000.0
        self.admission.configure(pipeline, settings.queue_s, settings.queue_max, settings.hold)

    def explain(self, request: Request, now: float) -> tuple[list[Row], int]:
        """How every endpoint would rate for this request now, and the slot of the best (−1 where
        that does not decide); changes nothing that a decision depends on."""
        self.fleet.now_ms = now * 1000.0
        cached = self._estimate(request)
        likely = self.homes.expect(request, cached, self.pipeline, count=False)
        choice = self.pipeline.preview(request, self.fleet, likely)
        return rows(tuple(self.fleet.slots), cached, choice, choice.slot), choice.slot

    # --- requests -----------------------------------------------------------------------------

    def _arrived(self, event: ev.RequestArrived) -> list[Command]:
        self.retries.earn()
        if self.hedges.share:
            self.hedges.earn()
        request = event.request
        if request.token_blocks:
            self.experience.tokenised(request.model)
        if self._held and self.admission.behind(request):
            self.experience.estimate(request)
            return [*self.admission.hold(request)]
        cached, choice = self._choose(request)
        if choice is None:
            return self._unserved(request)
        if self.admission.must_wait(request, choice.slot):
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
        if request.pinned_to is not None:
            return cached, self._pinned(request, request.pinned_to, cached)
        if self.slow_start.starting and not tried:
            tried = self.slow_start.held_back(self.fleet)
        expected = self.homes.expect(request, cached, self.pipeline)
        choice = self.pipeline.decide(request, self.fleet, expected, self._random, tried)
        if self._held and choice is not None and self.admission.hurries(request, choice.slot):
            avoided = (*tried, *self.admission.overfull())
            choice = self.pipeline.decide(request, self.fleet, expected, self._random, avoided)
        return cached, choice

    def _pinned(
        self, request: Request, pinned_to: tuple[str, int], cached: Column
    ) -> Choice | None:
        """The one endpoint that may serve the request, None where it cannot now."""
        fleet, (endpoint_id, generation) = self.fleet, pinned_to
        slot = fleet.slot_of(endpoint_id)
        endpoint = None if slot is None else fleet.slots[slot]
        if slot is None or endpoint is None or endpoint.generation != generation:
            return None
        if self.pipeline.allowed(request, fleet).dropped[slot] is not None:
            return None
        others = [other for other in range(len(fleet)) if other != slot]
        return self.pipeline.decide(request, fleet, cached, self._random, others)

    def _dispatch(
        self,
        request: Request,
        attempt: int,
        tried: tuple[int, ...],
        cached: Column,
        choice: Choice,
        queue_ms: float = 0.0,
    ) -> Command:
        flight = self.flights.launch(request.id, request, attempt, tried, cached, choice, queue_ms)
        if self.slow_start.starting:
            self.slow_start.took(choice.slot)
        hedge_after_s = 0.0
        if self.hedges.share and request.stream and attempt == 1:
            expected_ms = flight.decision.expected_ttft_ms
            hedge_after_s = (_HEDGE_MS + _HEDGE_TIMES * expected_ms) / 1000.0
        return Dispatch(
            request.id, choice.slot, attempt, int(flight.cached), queue_ms, hedge_after_s
        )

    def _unserved(
        self, request: Request, attempt: int = 1, tried: tuple[int, ...] = ()
    ) -> list[Command]:
        """Nothing ready may serve this: wait for what is on its way up, or say so."""
        if request.pinned_to is not None:
            return [Reject(request.id, 404, _RESPONSE_GONE)]
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
        self.flights.first_byte(event.request_id)
        return []

    def _finished(self, event: ev.RequestFinished) -> list[Command]:
        outcome = "answered" if event.ok else "answered with an error"
        flight = self.flights.land(event.request_id, outcome, forget=not event.ok)
        if flight is None:
            self.flow.remove(event.request_id)
        elif event.ok and event.usage is not None:
            self.flights.learn(flight, event.usage)
        return []

    def _cancelled(self, event: ev.RequestCancelled) -> list[Command]:
        flight = self.flights.get(event.request_id)
        if flight is None:
            self.flow.remove(event.request_id)
            return []
        early = not flight.first_byte_ms
        self.flights.land(event.request_id, "cancelled by the client", forget=early)
        return [Abort(event.request_id, flight.slot)]

    def _leg_failed(self, event: ev.LegFailed) -> list[Command]:
        flight = self.flights.land(event.request_id, f"failed: {event.reason}", forget=True)
        if flight is None:
            if event.started:
                self.flow.remove(event.request_id)
            return []
        request, tried = flight.request, (*flight.tried, flight.slot)
        request.extra_tokens += event.answered_tokens
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

    # --- hedging ------------------------------------------------------------------------------

    def _overdue(self, event: ev.FirstByteOverdue) -> list[Command]:
        """The first byte should have come long ago: send the request to a second endpoint too, if
        there is another one, and the budget has something left."""
        flight = self.flights.get(event.request_id)
        if flight is None or flight.first_byte_ms or flight.request.id + _HEDGE in self.flights:
            return []
        request, tried = flight.request, (*flight.tried, flight.slot)
        cached, choice = self._choose(request, tried)
        if choice is None or choice.slot in tried or not self.hedges.spend():
            return []
        key, attempt = request.id + _HEDGE, flight.attempt
        second = self.flights.launch(key, request, attempt, tried, cached, choice, 0.0)
        return [Hedge(request.id, choice.slot, attempt, int(second.cached))]

    def _hedge_settled(self, event: ev.HedgeSettled) -> list[Command]:
        key = event.request_id + _HEDGE
        if not event.won:
            self.flights.land(key, "hedged: the first endpoint answered", forget=True)
            return []
        self.flights.land(event.request_id, "overtaken by a hedge", forget=True)
        self.flights.rename(key, event.request_id)
        return []

    def _tokenised(self, event: ev.Tokenised) -> list[Command]:
        """Too late for the choice, but not for what the index learns from it, nor for another."""
        flight = self.flights.get(event.request_id)
        held = self._held.get(event.request_id)
        request = flight.request if flight is not None else held.request if held else None
        if request is not None:
            request.tokens, request.blocks, request.token_blocks = event.tokens, event.blocks, True
            self.experience.tokenised(request.model)
        if flight is not None and self.flights.current(flight):
            flight.added += self.index.insert(flight.slot, event.blocks)
        return []

    # --- endpoints ----------------------------------------------------------------------------

    def _joined(self, event: ev.EndpointJoined) -> list[Command]:
        endpoint = event.endpoint
        if self.fleet.slot_of(endpoint.id) is not None:
            self._left(ev.EndpointLeft(endpoint.id))
        slot = self.fleet.add(endpoint, event.state)
        self.latency.join(slot, endpoint.pool)
        self.saturation.join(slot)
        self._bound_index(slot, endpoint, endpoint.kv_capacity_tokens)
        if event.state is State.READY:
            self.slow_start.ready(slot, self.fleet)
        return []

    def _bound_index(self, slot: int, endpoint: Endpoint, kv_tokens: int) -> None:
        known = self.experience.block_bytes
        ratio = known(endpoint.models[0]) if endpoint.models else BYTES_PER_TOKEN
        self.index.set_capacity(slot, (kv_tokens or _KV_UNKNOWN_TOKENS) * ratio)

    def _left(self, event: ev.EndpointLeft) -> list[Command]:
        slot = self.fleet.remove(event.endpoint_id)
        if slot is not None:
            self.index.remove(slot)
            self.slow_start.out(slot)
            self.inflight.left(slot)
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
        self.inflight.counted(slot, event.load)
        self.homes.reported(slot)
        self.saturation.reported(slot, event.load)
        endpoint, load = self.fleet.slots[slot], event.load
        if endpoint is not None and load is not None and load.kv_capacity_tokens:
            self._bound_index(slot, endpoint, load.kv_capacity_tokens)
        return []
