"""The virtual-time driver of the Director.

Theory. Four kinds of things happen: a request arrives, an engine's batch changes, an endpoint is
scraped, and a second passes. The driver jumps from one to the next. Arrivals come from a sorted
iterator and scrapes from a cursor over the endpoints, so that only batch changes need a heap; an
entry there is stale when its engine's next change has moved since.

The Director sees what a live router would: the first byte and the end of each stream with the
usage in it, and each endpoint's metrics once an interval, every endpoint at its own moment of it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from infctl.core import events as ev
from infctl.core.commands import Dispatch, Reject
from infctl.core.fleet import State
from infctl.core.request import Request
from infctl.replica import Finished, FirstToken, ReplicaRequest
from infctl.runs.spec import Sample, Tick

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from infctl.core.commands import Command
    from infctl.core.director import Director
    from infctl.sim.fleet import Unit

NOT_FINISHED = "not finished"
"""The error of a request that the end of the run cut off."""

_NEVER = float("inf")
_TICK_MS = 1000.0


class Arrival(msgspec.Struct, gc=False):
    """A request as it reaches the router: what the router hashes of it, and what the engine.
    `at_ms` is its time at rate scale 1."""

    at_ms: float
    prompt_tokens: int
    output_tokens: int
    prompt_bytes: int
    blocks: list[int]
    engine_blocks: list[int]
    session: str = ""


class _Flight(msgspec.Struct, gc=False):
    arrival: Arrival
    sent_ms: float
    slot: int = -1
    first_ms: float = 0.0
    cached: int = 0


class Simulation:
    """A Director and its units in virtual time. Scrapes happen every `interval_ms`."""

    def __init__(
        self, director: Director, units: list[Unit], model: str, interval_ms: float, random: Random
    ) -> None:
        self.samples: list[Sample] = []
        self.ticks: list[Tick] = []
        self.tells_output = True
        self._director = director
        self._model = model
        self._interval_ms = interval_ms
        self._units = units
        self._half_rtt_ms = [unit.endpoint.rtt_ms / 2.0 for unit in units]
        self._flights: dict[str, _Flight] = {}
        self._changes: list[tuple[float, int]] = []
        self._due_ms = [_NEVER] * len(units)
        self._on_their_way: list[tuple[float, int, ev.Event]] = []
        self._sent = 0
        self._numbered = 0
        self._waiting: Iterator[Arrival] = iter(())
        self._rate_scale = 1.0
        for unit in units:
            director.handle(ev.EndpointJoined(unit.endpoint, State.READY), 0.0)
        moments = ((random.random() * interval_ms, slot) for slot in range(len(units)))
        self._scrapes = sorted(moments)

    def open_loop(
        self, arrivals: Iterator[Arrival], rate_scale: float, tick_ms: float, end_ms: float
    ) -> None:
        """Send every request at its time; they ascend. What is not over by `end_ms` is cut off."""
        self._rate_scale = rate_scale
        self._run(arrivals, tick_ms, end_ms)

    def closed_loop(
        self, arrivals: Iterator[Arrival], concurrency: int, tick_ms: float, end_ms: float
    ) -> None:
        """Keep so many requests open, whatever their times."""
        self._waiting = arrivals
        for _ in range(concurrency):
            self._send_waiting(0.0)
        self._run(iter(()), tick_ms, end_ms)

    def _run(self, arrivals: Iterator[Arrival], tick_ms: float, end_ms: float) -> None:
        coming = next(arrivals, None)
        changes, mail, scrapes = self._changes, self._on_their_way, self._scrapes
        rate_scale = self._rate_scale
        scraped, round_ms = 0, 0.0
        second_ms, sample_ms = _TICK_MS, 0.0
        while coming is not None or self._flights:
            arrival_ms = coming.at_ms / rate_scale if coming is not None else _NEVER
            change_ms = changes[0][0] if changes else _NEVER
            mail_ms = mail[0][0] if mail else _NEVER
            scrape_ms = round_ms + scrapes[scraped][0]
            at_ms = min(change_ms, arrival_ms, mail_ms, scrape_ms, second_ms)
            if at_ms >= sample_ms:
                if at_ms > end_ms:
                    break
                self.ticks.append(self._tick(sample_ms))
                sample_ms += tick_ms
            if at_ms == change_ms:
                self._change()
            elif coming is not None and at_ms == arrival_ms:
                self._arrive(coming, arrival_ms)
                coming = next(arrivals, None)
            elif at_ms == mail_ms:
                self._handle(heapq.heappop(mail)[2], mail_ms)
            elif at_ms == scrape_ms:
                slot = scrapes[scraped][1]
                load = ev.LoadReported(self._units[slot].endpoint.id, self._units[slot].load(at_ms))
                self._handle(load, at_ms)
                scraped += 1
                if scraped == len(scrapes):
                    scraped, round_ms = 0, round_ms + self._interval_ms
            else:
                self._handle(ev.Tick(), second_ms)
                second_ms += _TICK_MS
        for name in list(self._flights):
            self._end(name, NOT_FINISHED)

    def _tick(self, at_ms: float) -> Tick:
        tokens = sum(u.engine.load(at_ms).generation_tokens_total for u in self._units)
        return Tick(at_ms / 1000.0, tokens, len(self._flights))

    # --- requests ---------------------------------------------------------------------------------

    def _send_waiting(self, now_ms: float) -> None:
        arrival = next(self._waiting, None)
        if arrival is not None:
            self._arrive(arrival, now_ms)

    def _arrive(self, arrival: Arrival, now_ms: float) -> None:
        name = str(self._numbered)
        self._numbered += 1
        self._flights[name] = _Flight(arrival, now_ms)
        request = Request(
            id=name,
            model=self._model,
            prompt_bytes=arrival.prompt_bytes,
            max_tokens=arrival.output_tokens if self.tells_output else 0,
            blocks=arrival.blocks,
            session=arrival.session,
            stream=True,
        )
        self._handle(ev.RequestArrived(request), now_ms)

    def _handle(self, event: ev.Event, now_ms: float) -> None:
        for command in self._director.handle(event, now_ms / 1000.0):
            self._perform(command, now_ms)

    def _perform(self, command: Command, now_ms: float) -> None:
        if isinstance(command, Dispatch):
            self._submit(command.request_id, command.slot, now_ms)
        elif isinstance(command, Reject):
            self._end(command.request_id, f"HTTP {command.status}", now_ms)

    def _submit(self, name: str, slot: int, now_ms: float) -> None:
        flight = self._flights[name]
        flight.slot = slot
        arrival, engine = flight.arrival, self._units[slot].engine
        request = ReplicaRequest(
            name, arrival.prompt_tokens, arrival.output_tokens, arrival.engine_blocks
        )
        try:
            engine.submit(request, now_ms + self._half_rtt_ms[slot])
        except ValueError:  # more tokens than its memory holds: engines refuse that
            self._end(name, "HTTP 400", now_ms)
            self._handle(ev.RequestFinished(name, False), now_ms)
            return
        self._schedule(slot)

    def _schedule(self, slot: int) -> None:
        at_ms = self._units[slot].engine.next_change_ms()
        if at_ms is None:
            self._due_ms[slot] = _NEVER
        elif at_ms != self._due_ms[slot]:
            self._due_ms[slot] = at_ms
            heapq.heappush(self._changes, (at_ms, slot))

    def _change(self) -> None:
        at_ms, slot = heapq.heappop(self._changes)
        if at_ms != self._due_ms[slot]:
            return
        for happened in self._units[slot].engine.advance(at_ms):
            if isinstance(happened, FirstToken):
                self._first(happened, slot)
            elif isinstance(happened, Finished):
                self._finished(happened, slot)
        self._schedule(slot)

    def _first(self, happened: FirstToken, slot: int) -> None:
        flight = self._flights[happened.id]
        flight.first_ms = happened.at_ms + self._half_rtt_ms[slot]
        flight.cached = happened.cached_tokens
        self._tell(ev.FirstByte(happened.id), happened.at_ms, slot)

    def _finished(self, happened: Finished, slot: int) -> None:
        flight = self._flights[happened.id]
        at_ms = happened.at_ms + self._half_rtt_ms[slot]
        arrival = flight.arrival
        usage = ev.Usage(arrival.prompt_tokens, arrival.output_tokens, flight.cached)
        self._end(happened.id, "", at_ms)
        self._tell(ev.RequestFinished(happened.id, True, usage), happened.at_ms, slot)

    def _tell(self, event: ev.Event, at_ms: float, slot: int) -> None:
        """Tell the router when it hears of it."""
        late_ms = self._half_rtt_ms[slot]
        if late_ms:
            self._sent += 1
            heapq.heappush(self._on_their_way, (at_ms + late_ms, self._sent, event))
        else:
            self._handle(event, at_ms)

    def _end(self, name: str, error: str, now_ms: float = 0.0) -> None:
        flight = self._flights.pop(name)
        arrival = flight.arrival
        sample = Sample(
            sent_s=flight.sent_ms / 1000.0,
            late_ms=0.0,
            input_tokens=arrival.prompt_tokens,
            endpoint=self._units[flight.slot].endpoint.id if flight.slot >= 0 else "",
            error=error,
        )
        if flight.first_ms:
            sample.ttft_ms = flight.first_ms - flight.sent_ms
        if not error:
            sample.e2e_ms = now_ms - flight.sent_ms
            sample.prompt_tokens = arrival.prompt_tokens
            sample.cached_tokens = flight.cached
            sample.output_tokens = tokens = arrival.output_tokens
            if tokens > 1:
                sample.tpot_ms = (now_ms - flight.first_ms) / (tokens - 1)
        self.samples.append(sample)
        self._send_waiting(now_ms)
