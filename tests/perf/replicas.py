"""Several routers over one fleet, in virtual time: what not knowing of each other costs.

    python tests/perf/replicas.py [--trace FILE] [--requests 3000] [--rate 1] [--routers 1,3]

Replays the Mooncake conversation trace against eight emulated engines (DeepSeek-V3 on 8 x H200).
Each request goes to a router drawn at random; the routers share nothing and see each engine's own
report once a second. With `--workers 4` they are the workers of one router, with their real shared
memory. Printed: prefix hit rate, requests of the busiest endpoint over the mean, the
same of prompt tokens computed, TTFT and time per output token.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import os
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infctl import compose
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.fleet import Endpoint, Load, State
from infctl.core.prefix import block_hashes, prefix_seed
from infctl.core.request import Request
from infctl.profile.model import Profile
from infctl.replica import Finished, FirstToken, Replica, ReplicaOptions, ReplicaRequest
from infctl.router import shared

ENGINES = 8
KV_TOKENS = 1_536_000
BLOCK_TOKENS = 512
BYTES_PER_TOKEN = 4
QUANTUM_S = 3.0
REPORT_MS = 1000.0
LOOK_MS = 20.0
DATA = Path(os.environ.get("INFCTL_DATA") or Path(__file__).parents[2] / "../shared/data")


Look = Callable[[float, Director, Callable[[ev.Event], None]], None]


@dataclass
class Arrival:
    """One request of the trace."""

    at_ms: float
    prompt_tokens: int
    output_tokens: int
    blocks: list[int]
    engine_blocks: list[int]


@functools.lru_cache(200_000)
def segment(number: int) -> bytes:
    """The text of one of the trace's 512-token blocks."""
    return random.Random(number).randbytes(BLOCK_TOKENS * BYTES_PER_TOKEN)


def arrivals(path: Path, count: int, rate: float = 1.0) -> list[Arrival]:
    """The trace's first requests, spread over the three seconds its timestamps are rounded to."""
    dice, seed, found = random.Random(0), prefix_seed("m"), []
    with path.open() as lines:
        for line in (next(lines) for _ in range(count)):
            row = json.loads(line)
            tokens = row["input_length"]
            text = b"".join(segment(i) for i in row["hash_ids"])[: tokens * BYTES_PER_TOKEN]
            chain, engine_blocks = 0, []
            for number in row["hash_ids"][: tokens // BLOCK_TOKENS]:
                chain = hash((chain, number))
                engine_blocks.append(chain)
            at_ms = (row["timestamp"] / 1000.0 + dice.random() * QUANTUM_S) * 1000.0 / rate
            blocks = block_hashes(text, seed)
            found.append(Arrival(at_ms, tokens, row["output_length"], blocks, engine_blocks))
    return sorted(found, key=lambda a: a.at_ms)


@dataclass
class Flight:
    """A request on its way."""

    arrival: Arrival
    router: Director
    engine: int
    first_ms: float = 0.0
    cached: int = 0


@dataclass
class Outcome:
    """What a run came to."""

    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=lambda: [0] * ENGINES)
    computed: list[int] = field(default_factory=lambda: [0] * ENGINES)
    cached: int = 0
    prompt: int = 0

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt

    @property
    def spread(self) -> float:
        """Requests of the busiest endpoint over the mean."""
        return max(self.requests) / statistics.mean(self.requests)

    @property
    def work_spread(self) -> float:
        """The same of prompt tokens computed."""
        return max(self.computed) / statistics.mean(self.computed)


def directors(count: int, scorers: list[Any]) -> list[Director]:
    """Routers with the same endpoints."""
    profile = Profile.model_validate(
        {
            "metadata": {"name": "x"},
            "models": [{"name": "m"}],
            "pools": [{"name": "p"}],
            "routing": {"scorers": scorers} if scorers else {},
        }
    )
    found = []
    for number in range(count):
        director = Director(compose.pipeline(profile), random.Random(number))
        for unit in range(ENGINES):
            endpoint = Endpoint(
                unit=f"u{unit}", url="", models=("m",), pool="p", kv_capacity_tokens=KV_TOKENS
            )
            director.handle(ev.EndpointJoined(endpoint, State.READY), 0.0)
        found.append(director)
    return found


class Run:
    """Routers and engines in virtual time. `before` lets a router look at others, ahead of each
    arrival there and every LOOK_MS."""

    def __init__(
        self,
        routers: list[Director],
        before: Look | None = None,
        kv_tokens: int = KV_TOKENS,
    ) -> None:
        timing = compose.timing("deepseek-v3-8xh200-tp8")
        options = ReplicaOptions(block_size=BLOCK_TOKENS, kv_capacity_tokens=kv_tokens)
        self.routers = routers
        self.engines = [Replica(timing, options) for _ in range(ENGINES)]
        self.outcome = Outcome()
        self._before: Look = before or (lambda *_: None)
        self._look_ms = LOOK_MS if before else float("inf")
        self._flights: dict[str, Flight] = {}
        self._queue: list[tuple[float, int, int]] = []
        self._versions = [0] * ENGINES
        self._dice = random.Random(9)

    def replay(self, requests: Iterator[Arrival]) -> Outcome:
        """Send every request, and let all of them finish."""
        report_ms, look_ms, number = 0.0, 0.0, 0
        coming = next(requests, None)
        while coming is not None or self._queue:
            arrival_ms = coming.at_ms if coming is not None else float("inf")
            change_ms = self._queue[0][0] if self._queue else float("inf")
            if look_ms <= min(report_ms, arrival_ms, change_ms):
                for router in self.routers:
                    self._look(router, look_ms)
                look_ms += self._look_ms
            elif report_ms <= min(arrival_ms, change_ms):
                self._report(report_ms)
                report_ms += REPORT_MS
            elif coming is not None and arrival_ms <= change_ms:
                self._arrive(str(number), coming)
                number += 1
                coming = next(requests, None)
            else:
                self._change()
        return self.outcome

    def _report(self, now_ms: float) -> None:
        for unit, engine in enumerate(self.engines):
            seen = engine.load(now_ms)
            load = Load(running=seen.running, waiting=seen.waiting, kv_usage=seen.kv_usage)
            for router in self.routers:
                self._handle(router, ev.LoadReported(f"u{unit}", load), now_ms)

    def _arrive(self, name: str, arrival: Arrival) -> None:
        router = self._dice.choice(self.routers)
        self._look(router, arrival.at_ms)
        request = Request(
            id=name, model="m", prompt_bytes=arrival.prompt_tokens * BYTES_PER_TOKEN,
            blocks=arrival.blocks, stream=True,
        )  # fmt: skip
        self._flights[name] = Flight(arrival, router, -1)
        self._handle(router, ev.RequestArrived(request), arrival.at_ms)

    def _look(self, router: Director, now_ms: float) -> None:
        self._before(now_ms / 1000.0, router, lambda event: self._handle(router, event, now_ms))

    def _handle(self, router: Director, event: ev.Event, now_ms: float) -> None:
        for command in router.handle(event, now_ms / 1000.0):
            flight = self._flights[command.request_id]
            flight.engine = command.slot  # type: ignore[union-attr]
            self._submit(command.request_id, flight, now_ms)

    def _submit(self, name: str, flight: Flight, now_ms: float) -> None:
        arrival, unit = flight.arrival, flight.engine
        self.outcome.requests[unit] += 1
        self.engines[unit].submit(
            ReplicaRequest(
                name, arrival.prompt_tokens, arrival.output_tokens, arrival.engine_blocks
            ),
            now_ms,
        )
        self._schedule(unit)

    def _schedule(self, unit: int) -> None:
        at_ms = self.engines[unit].next_change_ms()
        self._versions[unit] += 1
        if at_ms is not None:
            heapq.heappush(self._queue, (at_ms, unit, self._versions[unit]))

    def _change(self) -> None:
        at_ms, unit, version = heapq.heappop(self._queue)
        if version != self._versions[unit]:
            return
        for happened in self.engines[unit].advance(at_ms):
            if isinstance(happened, FirstToken):
                self._first(happened)
            elif isinstance(happened, Finished):
                self._finished(happened)
        self._schedule(unit)

    def _first(self, happened: FirstToken) -> None:
        flight = self._flights[happened.id]
        flight.first_ms, flight.cached = happened.at_ms, happened.cached_tokens
        self._handle(flight.router, ev.FirstByte(happened.id), happened.at_ms)

    def _finished(self, happened: Finished) -> None:
        flight = self._flights.pop(happened.id)
        arrival, outcome = flight.arrival, self.outcome
        usage = ev.Usage(arrival.prompt_tokens, arrival.output_tokens, flight.cached)
        self._handle(flight.router, ev.RequestFinished(happened.id, True, usage), happened.at_ms)
        outcome.ttft_ms.append(flight.first_ms - arrival.at_ms)
        if arrival.output_tokens > 1:
            took = happened.at_ms - flight.first_ms
            outcome.tpot_ms.append(took / (arrival.output_tokens - 1))
        outcome.cached += flight.cached
        outcome.prompt += arrival.prompt_tokens
        outcome.computed[flight.engine] += arrival.prompt_tokens - flight.cached


def workers(routers: list[Director]) -> Look:
    """Let directors share what workers share; returns what to ask ahead of each arrival."""
    memory = shared.create(len(routers))
    peers = {
        id(router): shared.Peers(router, memory, number, len(routers))
        for number, router in enumerate(routers)
    }
    os.close(memory)
    return lambda now, router, handle: peers[id(router)].look(now, handle)


def line(label: str, found: Outcome) -> str:
    """One row of the table."""
    ttft, tpot = sorted(found.ttft_ms), sorted(found.tpot_ms)
    at = [ordered[int(len(ordered) * p)] for ordered in (ttft, tpot) for p in (0.5, 0.9)]
    return (
        f"{label:<28}{found.hit_rate:>7.1%}{found.spread:>7.2f}{found.work_spread:>7.2f}"
        f"{at[0]:>8,.0f}{at[1]:>8,.0f}{at[2]:>7.1f}{at[3]:>7.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=DATA / "mooncake_conversation.jsonl")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rate", type=float, nargs="*", default=[1.0])
    parser.add_argument("--routers", default="1,3")
    parser.add_argument("--workers", default="")
    parser.add_argument("--scorers", type=json.loads, default=[])
    options = parser.parse_args()
    print(f"{'':<28}{'hits':>7}{'req':>7}{'work':>7}{'TTFT50':>8}{'90':>8}{'TPOT50':>7}{'90':>7}")
    for rate in options.rate:
        trace = arrivals(options.trace, options.requests, rate)
        for count in map(int, options.routers.split(",")):
            found = Run(directors(count, options.scorers)).replay(iter(trace))
            print(line(f"rate x{rate:g}, {count} routers", found), flush=True)
        for count in map(int, filter(None, options.workers.split(","))):
            routers = directors(count, options.scorers)
            found = Run(routers, workers(routers)).replay(iter(trace))
            print(line(f"rate x{rate:g}, {count} workers", found), flush=True)


if __name__ == "__main__":
    main()
