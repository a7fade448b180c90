"""How fast the simulator is.

    python tests/perf/sim.py [--rounds 3] [--million]

CPU seconds of a run, start-up (reading the trace, hashing its prompts) told apart: the one-hour
Mooncake conversation trace on eight `deepseek-v3` units by each policy, the best of some rounds;
with `--million`, a million requests of the built-in conversation over a thousand units, once, with
the peak memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infctl import compose
from infctl.profile.load import load
from infctl.profile.model import Profile
from infctl.runs.spec import RunSpec
from infctl.runs.summary import summarise
from infctl.sim.fleet import resized
from infctl.sim.run import prepare, simulate

DATA = Path(os.environ.get("INFCTL_DATA") or Path(__file__).parents[2] / "../shared/data")
TRACE = DATA / "mooncake_conversation.jsonl"
POLICIES = ("round-robin", "least-request", "predicted-ttft")


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and what it returns."""
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def hour(rounds: int) -> None:
    """The conversation trace."""
    fleet = resized(load("deepseek-v3"), 8)
    spec = RunSpec(url="", workload=str(TRACE))
    start_s, prepared = timed(lambda: prepare(fleet, spec))
    print(f"{len(prepared.plan.requests):,} requests on 8 units; start-up {start_s:.2f} s")
    for policy in POLICIES:
        chosen = compose.with_policy(fleet, policy)
        took = [timed(lambda c=chosen: simulate(c, spec, prepared)) for _ in range(rounds)]
        best_s, measured = min(took, key=lambda each: each[0])
        run = summarise(measured, spec)
        print(
            f"{policy:<16}{best_s:>6.2f} s  {run.duration_s / best_s:>6,.0f}x real time  "
            f"TTFT p50 {run.ttft_ms.p50:,.0f} ms, hit rate {run.prefix_hit_rate:.1%}"
        )


def million(count: int, units: int) -> None:
    """Many requests, many units."""
    fleet: Profile = resized(load("deepseek-v3"), units)
    spec = RunSpec(
        url="", workload="conversation", parameters={"rate_rps": 0.425 * units}, limit=count
    )
    start_s, prepared = timed(lambda: prepare(fleet, spec))
    took_s, measured = timed(lambda: simulate(fleet, spec, prepared))
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    errors = sum(1 for sample in measured.samples if sample.error)
    print(
        f"{len(measured.samples):,} requests over {units:,} units: {took_s:.0f} s, start-up "
        f"{start_s:.0f} s, peak {peak_gb:.2f} GB, {errors} errors"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--units", type=int, default=1000)
    options = parser.parse_args()
    if options.million:
        million(options.requests, options.units)
    else:
        hour(options.rounds)


if __name__ == "__main__":
    main()
