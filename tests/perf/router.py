"""The router beside its peers: CPU per request and added latency, interleaved, in one run.

    python tests/perf/router.py [--rounds 5] [--only 2k,burst] [--quick] [--json FILE]

Needs `pip install .` and a package index for the peers (once). Eight mock engines in one process
answer for all routers; every router runs at the same time, and rounds go through them in turn, so
that a noisy machine is noisy for all. CPU is user + system time of a router's whole process tree.
Ratios are infctl over the best peer in the same round; the table shows their median.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import load
import peers
import uvloop

ENGINES = 8
ENGINE_PORT = 18100
ROUTER_PORT = 18200
NUMBERS = itertools.count(1)
CACHE = Path.home() / ".cache" / "infctl" / "perf-peers"


@dataclass(frozen=True)
class Scenario:
    """One row of the table. `requests` at concurrency 1; more of them at higher ones."""

    name: str
    prompt_bytes: int
    chunks: int = 0
    pace_ms: float = 0.0
    concurrencies: tuple[int, ...] = (1, 32, 512)
    requests: int = 1500


SCENARIOS = (
    Scenario("2k", 2_000),
    Scenario("burst", 2_000, chunks=50, requests=600),
    Scenario("paced", 2_000, chunks=50, pace_ms=20, requests=16),
    Scenario("100k", 100_000, requests=500),
    Scenario("1000 chunks", 2_000, chunks=1000, requests=60),
)


@dataclass
class Sample:
    """One router in one round."""

    cpu_us: float
    user_us: float
    p50_ms: float
    p99_ms: float


def count(scenario: Scenario, concurrency: int, quick: bool) -> int:
    """Requests of one measurement: enough for a hundredth of a second of CPU to be small."""
    if scenario.pace_ms:
        return max(scenario.requests, concurrency * (4 if concurrency < 512 else 1))
    base = scenario.requests if concurrency == 1 else scenario.requests * 3
    return max(concurrency * 2, base // (4 if quick else 1))


def mode(scenario: Scenario) -> None:
    """Tell the engines how to answer."""
    query = f"chunks={scenario.chunks}&pace_ms={scenario.pace_ms}"
    urllib.request.urlopen(f"http://127.0.0.1:{ENGINE_PORT}/_mode?{query}", timeout=5).read()


def measure(peer: peers.Peer, scenario: Scenario, concurrency: int, total: int) -> Sample:
    """Send requests through one router; raises unless every answer was a 200."""
    pool = load.pool(scenario.prompt_bytes, scenario.chunks)
    user, system = peer.cpu_s()
    tally = uvloop.run(load.run(peer.port, pool, next(NUMBERS) * total, total, concurrency))
    after_user, after_system = peer.cpu_s()
    if tally.failures:
        raise RuntimeError(f"{peer.name}: {tally.failures} of {total} requests failed")
    ordered = sorted(tally.latencies)
    return Sample(
        cpu_us=(after_user + after_system - user - system) / total * 1e6,
        user_us=(after_user - user) / total * 1e6,
        p50_ms=ordered[len(ordered) // 2] * 1e3,
        p99_ms=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3,
    )


def direct(scenario: Scenario, concurrency: int, total: int) -> tuple[float, float]:
    """p50 and p99 in ms straight to an engine: what a router's latency is added to."""
    pool = load.pool(scenario.prompt_bytes, scenario.chunks)
    tally = uvloop.run(load.run(ENGINE_PORT, pool, 0, total, concurrency))
    ordered = sorted(tally.latencies)
    return ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3


def compare(
    running: list[peers.Peer], scenario: Scenario, concurrency: int, rounds: int, quick: bool
) -> dict[str, object]:
    """One row: medians per router, and the median of the rounds' ratios to the best peer."""
    mode(scenario)
    total = count(scenario, concurrency, quick)
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in running}
    bases = []
    for number in range(rounds + 1):
        base = direct(scenario, concurrency, min(total, 400))
        turn = running[number % len(running) :] + running[: number % len(running)]
        for peer in turn:
            sample = measure(peer, scenario, concurrency, total)
            if number:
                samples[peer.name].append(sample)
        if number:
            bases.append(base)
    return row(scenario, concurrency, samples, bases)


def row(
    scenario: Scenario,
    concurrency: int,
    samples: dict[str, list[Sample]],
    bases: list[tuple[float, float]],
) -> dict[str, object]:
    """Medians and ratios of one scenario at one concurrency."""
    others = [name for name in samples if name != "infctl"]
    ratios = {}
    for figure in ("cpu_us", "user_us"):
        ratios[figure] = statistics.median(
            getattr(ours, figure) / min(max(getattr(samples[o][n], figure), 1e-9) for o in others)
            for n, ours in enumerate(samples["infctl"])
        )
    for index, figure in enumerate(("p50_ms", "p99_ms")):
        ratios[figure] = statistics.median(
            max(getattr(ours, figure) - bases[n][index], 1e-3)
            / max(min(getattr(samples[o][n], figure) - bases[n][index] for o in others), 1e-3)
            for n, ours in enumerate(samples["infctl"])
        )
    medians = {
        name: {f: statistics.median(getattr(s, f) for s in taken) for f in Sample.__annotations__}
        for name, taken in samples.items()
    }
    return {
        "scenario": scenario.name,
        "concurrency": concurrency,
        "ratio": ratios,
        "direct_p50_ms": statistics.median(b[0] for b in bases),
        "routers": medians,
    }


def show(found: dict[str, object], names: list[str]) -> str:
    """One line of the table."""
    ratio, routers = found["ratio"], found["routers"]
    cells = [f"{routers[n]['cpu_us']:>8.0f}" if n in routers else f"{'-':>8}" for n in names]  # type: ignore[index,operator]
    latency = f"{ratio['p50_ms']:>6.2f}{ratio['p99_ms']:>6.2f}" if found["concurrency"] == 1 else ""  # type: ignore[index]
    return (
        f"{found['scenario']:<12}{found['concurrency']:>5}{''.join(cells)}"
        f"{ratio['cpu_us']:>7.2f}{ratio['user_us']:>7.2f}{latency}"  # type: ignore[index]
    )


def counters(port: int) -> list[str]:
    """The lines of our metrics that show the index, the limits and the counting at work."""
    wanted = ("infctl_prefix_", "infctl_requests_total", "infctl_refused", "infctl_retries")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    return [line for line in lines if "endpoint=" not in line or "18100" in line]


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios, comma-separated")
    parser.add_argument("--routers", default="", help="routers, comma-separated")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests, no 512")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    only = [s for s in options.only.split(",") if s]
    folder = Path("/tmp/infctl-perf")
    folder.mkdir(exist_ok=True)
    urls = [f"http://127.0.0.1:{ENGINE_PORT + n}" for n in range(ENGINES)]
    commands = peers.commands(peers.install(CACHE), urls, ROUTER_PORT)
    wanted = [r for r in options.routers.split(",") if r] or list(commands)
    mock = [str(Path(__file__).with_name("mock_engine.py")), str(ENGINE_PORT), str(ENGINES)]
    engine = subprocess.Popen([sys.executable, *mock], stdout=subprocess.PIPE)
    engine.stdout.readline()  # type: ignore[union-attr]
    running: list[peers.Peer] = []
    try:
        for number, (name, argv) in enumerate(commands.items()):
            if name in wanted:
                running.append(
                    peers.start(name, argv, ROUTER_PORT + number, folder / f"{name}.log")
                )
        names = [peer.name for peer in running]
        print(f"{'':<17}{'CPU per request, us':^{8 * len(names)}}{'ratio to best peer':>20}")
        columns = "".join(f"{n[:7]:>8}" for n in names)
        print(f"{'scenario':<12}{'c':>5}{columns}    cpu   user   p50   p99")
        rows = []
        for scenario in SCENARIOS:
            if only and scenario.name not in only:
                continue
            for concurrency in scenario.concurrencies:
                if options.quick and concurrency > 32:
                    continue
                rows.append(compare(running, scenario, concurrency, options.rounds, options.quick))
                print(show(rows[-1], names), flush=True)
        for peer in running:
            print(f"{peer.name}: {peer.rss_mb():.0f} MB")
        if running and running[0].name == "infctl":
            print("\n".join(counters(running[0].port)))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    finally:
        for peer in running:
            peer.stop()
        engine.kill()
        engine.wait()


if __name__ == "__main__":
    main()
