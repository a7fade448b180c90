"""The simulator against live processes with the same engine model: what drivers and delivery add.

    python tests/perf/plumbing.py [--trace FILE] [--minutes 10] [--speed 3]

Runs `infctl up demo --bench` and `infctl sim demo` on the first minutes of the Mooncake
conversation trace, and prints the figures of both. It takes the minutes over the speed, twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DATA = Path(os.environ.get("INFCTL_DATA") or Path(__file__).parents[2] / "../shared/data")
POLICIES = ("round-robin", "predicted-ttft")
FIGURES = {
    "TTFT p50": lambda run: run["ttft_ms"]["p50"],
    "TTFT p90": lambda run: run["ttft_ms"]["p90"],
    "TPOT p50": lambda run: run["tpot_ms"]["p50"],
    "output tokens/s": lambda run: run["output_tokens_per_s"],
    "hit rate": lambda run: run["prefix_hit_rate"],
}


def requests_within(trace: Path, minutes: float) -> int:
    """How many requests of a trace arrive in its first minutes."""
    with trace.open() as lines:
        return sum(json.loads(line)["timestamp"] < minutes * 60_000 for line in lines)


def result(folder: Path, *arguments: str) -> dict[str, Any]:
    """The result.json of an infctl command."""
    command = [sys.executable, "-m", "infctl", *arguments, "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=DATA / "mooncake_conversation.jsonl")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=3.0)
    options = parser.parse_args()
    count = requests_within(options.trace, options.minutes)
    load = ("--workload", str(options.trace), "--limit", str(count))
    with TemporaryDirectory() as name:
        speed = ("--speed", str(options.speed), "--port", "0")
        live = result(Path(name) / "live", "up", "demo", "--bench", *load, *speed)
        policies = [word for policy in POLICIES for word in ("--policy", policy)]
        simulated = result(Path(name) / "sim", "sim", "demo", *load, *policies)
    print(f"{count:,} requests, live at {options.speed:g}x; self-check: {live['client']}\n")
    print("| policy | figure | live | simulated | error |\n|---|---|---|---|---|")
    for one, other in zip(live["runs"], simulated["runs"], strict=True):
        for figure, value in FIGURES.items():
            a, b = value(one), value(other)
            print(f"| {one['policy']} | {figure} | {a:,.4g} | {b:,.4g} | {b / a - 1:+.1%} |")


if __name__ == "__main__":
    main()
