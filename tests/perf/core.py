"""What a decision and the prefix index cost, in microseconds: best of several rounds.

    python tests/perf/core.py

Decision: filters, scorers and pick of the default policy, beyond hashing the prompt, with every
endpoint learned and loaded. Index: hash, look up and insert a 100 kB prompt whose first half is
known. Budgets: 15, 30 and 120 us at 8, 1,024 and 10,240 endpoints; 100 us for the index.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from infctl import compose
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.fleet import Endpoint, State
from infctl.core.prefix import PrefixIndex, block_hashes, prefix_seed
from infctl.core.request import Request
from infctl.profile.model import Profile

ROUNDS = 15
SEED = prefix_seed("m")


def best_us(work: Callable[[], object], times: int) -> float:
    """Microseconds of one call, in the fastest round."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            work()
        rounds.append((time.perf_counter() - started) / times * 1e6)
    return min(rounds)


def fleet_of(endpoints: int) -> Director:
    """A director with loaded endpoints."""
    profile = Profile.model_validate(
        {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
    )
    dice = random.Random(1)
    director = Director(compose.pipeline(profile), dice)
    for number in range(endpoints):
        unit = Endpoint(unit=f"u{number}", url="", models=("m",), pool="p")
        director.handle(ev.EndpointJoined(unit, State.READY), 0.0)
    for slot in range(endpoints):
        director.fleet.cells["inflight"][slot] = dice.randrange(30)
        director.fleet.cells["ms_per_token"][slot] = dice.uniform(0.03, 0.05)
        director.fleet.cells["free_at_ms"][slot] = dice.uniform(0, 500)
    return director


def decision_us(endpoints: int) -> float:
    """Cost of Pipeline.decide with an estimate at hand."""
    director = fleet_of(endpoints)
    text = random.Random(2).randbytes(2000)
    request = Request(id="r", model="m", prompt_bytes=2000, blocks=block_hashes(text, SEED))
    director.index.insert(3, request.blocks)
    cached = director._estimate(request)
    dice = random.Random(3)
    return best_us(
        lambda: director.pipeline.decide(request, director.fleet, cached, dice),
        300 if endpoints < 5000 else 60,
    )


def index_us(endpoints: int) -> float:
    """Cost of hashing, matching and inserting a half-known 100 kB prompt, evicting as much."""
    index = PrefixIndex()
    for slot in range(endpoints):
        index.set_capacity(slot, 2_000_000)
    dice = random.Random(4)
    shared = dice.randbytes(50_000)
    prompts = iter([shared + dice.randbytes(50_000) for _ in range(ROUNDS * 40 + 50)])
    for slot in range(min(endpoints, 50)):
        index.insert(slot, block_hashes(next(prompts), SEED))

    def work() -> None:
        blocks = block_hashes(next(prompts), SEED)
        index.match(blocks, endpoints)
        index.insert(0, blocks)

    return best_us(work, 40)


def main() -> None:
    """Print the table."""
    print(f"{'endpoints':>9} {'decision, us':>13} {'100 kB prompt, us':>18}")
    for endpoints in (8, 64, 1024, 10_240):
        print(f"{endpoints:>9,} {decision_us(endpoints):>13.1f} {index_us(endpoints):>18.1f}")


if __name__ == "__main__":
    main()
