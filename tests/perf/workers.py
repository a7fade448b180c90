"""CPU per request of one worker and of several, interleaved, on the same mock engines.

    python tests/perf/workers.py [--workers 2] [--rounds 5] [--requests 4000]

Both routers run at the same time, each with eight mock engines' answers to 2 kB prompts; rounds go
through them in turn. CPU is user + system time of a router's whole process tree, its parent and
what its workers do for each other included. `spread` is the busiest worker's share of CPU over the
mean: how evenly connections spread.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import load
import peers
import psutil
import uvloop

ENGINES = 8
ENGINE_PORT = 18100
ROUTER_PORT = 18210
NUMBERS = itertools.count(1)


def start(workers: int, port: int, log: Path) -> peers.Peer:
    """A router with so many workers."""
    argv = [sys.executable, "-m", "infctl", "router", "--port", str(port)]
    argv += ["--workers", str(workers), "--admin", str(log.with_suffix(".sock"))]
    for number in range(ENGINES):
        argv += ["--endpoint", f"http://127.0.0.1:{ENGINE_PORT + number}"]
    return peers.start(f"{workers} workers", argv, port, log)


def processes(peer: peers.Peer) -> list[float]:
    """CPU seconds of each process that serves: the router, or its children where it has some."""
    root = psutil.Process(peer.process.pid)
    serving = root.children() or [root]
    return [sum(p.cpu_times()[:2]) for p in serving]


def measure(peer: peers.Peer, concurrency: int, total: int) -> tuple[float, float, float]:
    """CPU us per request, spread over workers, and requests a second."""
    before, each = sum(peer.cpu_s()), processes(peer)
    pool = load.pool(2000, 0)
    tally = uvloop.run(load.run(peer.port, pool, next(NUMBERS) * total, total, concurrency))
    if tally.failures:
        raise RuntimeError(f"{peer.name}: {tally.failures} of {total} requests failed")
    used = [after - b for after, b in zip(processes(peer), each, strict=True)]
    spread = max(used) / max(statistics.mean(used), 1e-9)
    return (sum(peer.cpu_s()) - before) / total * 1e6, spread, total / tally.seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000)
    options = parser.parse_args()
    engines = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("mock_engine.py"), str(ENGINE_PORT), "8"],
        stdout=subprocess.PIPE,
    )
    assert engines.stdout is not None
    engines.stdout.readline()
    running: list[peers.Peer] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number, workers in enumerate((1, options.workers)):
                log = Path(folder) / f"{workers}.log"
                running.append(start(workers, ROUTER_PORT + number, log))
            query = f"http://127.0.0.1:{ENGINE_PORT}/_mode?chunks=0&pace_ms=0"
            urllib.request.urlopen(query, timeout=5).read()
            for concurrency in (32, 512):
                table(running, concurrency, options)
            for peer in running:
                print(f"{peer.name}: {peer.rss_mb():.0f} MB")
                peer.stop()
            running.clear()
    finally:
        for peer in running:
            peer.stop()
        engines.terminate()
        engines.wait()


def table(running: list[peers.Peer], concurrency: int, options: argparse.Namespace) -> None:
    """Rounds of one concurrency, and their medians."""
    taken: dict[str, list[tuple[float, float, float]]] = {peer.name: [] for peer in running}
    for number in range(options.rounds + 1):
        for peer in running if number % 2 else running[::-1]:
            found = measure(peer, concurrency, options.requests)
            if number:
                taken[peer.name].append(found)
    one, several = (taken[peer.name] for peer in running)
    ratio = statistics.median(s[0] / o[0] for s, o in zip(several, one, strict=True))
    for name, samples in taken.items():
        cpu, spread, rate = (statistics.median(s[i] for s in samples) for i in range(3))
        print(f"c={concurrency:<4} {name:<10} {cpu:7.0f} us {rate:7.0f}/s  spread {spread:.2f}")
    print(f"c={concurrency:<4} ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
