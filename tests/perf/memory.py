"""What streams and requests leave in the router's memory.

    python tests/perf/memory.py streams [--count 5000] [--seconds 20]
    python tests/perf/memory.py requests [--count 1000000]

`streams` opens so many paced streams on one router, five chunks a second each, and reads its
resident memory before and while they run: a stream may take 20 kB beside what is kept for going on
elsewhere. `requests` sends unique prompts of 2 kB and reads the memory every tenth of the way: it
must be flat once the prefix index is full. Both end by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import load
import peers
import uvloop

ENGINES = 8
ENGINE_PORT = 18300
ROUTER_PORT = 18400
PACE_MS = 200
CONNECTIONS = 32


def start() -> tuple[subprocess.Popen[bytes], peers.Peer]:
    """Mock engines and a router with its defaults in front of them."""
    mock = [str(Path(__file__).with_name("mock_engine.py")), str(ENGINE_PORT), str(ENGINES)]
    engine = subprocess.Popen([sys.executable, *mock], stdout=subprocess.PIPE)
    engine.stdout.readline()  # type: ignore[union-attr]
    argv = [sys.executable, "-m", "infctl", "router", "--port", str(ROUTER_PORT)]
    for number in range(ENGINES):
        argv += ["--endpoint", f"http://127.0.0.1:{ENGINE_PORT + number}"]
    return engine, peers.start("infctl", argv, ROUTER_PORT, Path("/dev/null"))


def metric(name: str) -> float:
    """One of the router's metrics, summed over its labels."""
    url = f"http://127.0.0.1:{ROUTER_PORT}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def streams(router: peers.Peer, count: int, seconds: int) -> None:
    """Open them, hold them, and print what each costs."""
    chunks = seconds * 1000 // PACE_MS
    pool, tally = load.pool(2_000, chunks), load.Tally()
    before, loop = router.rss_mb(), asyncio.get_running_loop()
    workers = []
    for number in range(count):
        requests = iter([pool.take(number)])
        _, worker = await loop.create_connection(
            lambda requests=requests: load.Worker(lambda: next(requests, None), tally),  # type: ignore[misc]
            "127.0.0.1",
            ROUTER_PORT,
        )
        workers.append(worker)
        if number % 100 == 99:
            await asyncio.sleep(0.02)
    await asyncio.sleep(seconds / 3)
    cpu, at, events = sum(router.cpu_s()), time.perf_counter(), metric("infctl_stream_events_total")
    await asyncio.sleep(seconds / 4)
    took, spent = time.perf_counter() - at, sum(router.cpu_s()) - cpu
    rate = (metric("infctl_stream_events_total") - events) / took
    kept, rss = metric("infctl_continuation_bytes"), router.rss_mb()
    own = ((rss - before) * 2**20 - kept) / count
    async with asyncio.timeout(seconds * 4):
        await asyncio.gather(*[w.done for w in workers])
    print(
        f"{count} streams, {tally.failures} failed, {rate:.0f} chunks/s at {spent / took:.2f} cores"
    )
    print(
        f"{before:.0f} -> {rss:.0f} MB; {kept / count / 1000:.1f} kB a stream kept for continuation"
    )
    print(f"{own / 1000:.1f} kB a stream beside that")


def requests(router: peers.Peer, count: int) -> None:
    """Send them in ten parts, and print the memory after each."""
    pool, part = load.pool(2_000, 0), count // 10
    for number in range(10):
        tally = uvloop.run(load.run(ROUTER_PORT, pool, number * part, part, CONNECTIONS))
        rss, blocks = router.rss_mb(), metric("infctl_prefix_index_blocks")
        print(
            f"{(number + 1) * part:>9} requests, {tally.failures} failed, {rss:.1f} MB, "
            f"{blocks:.0f} blocks in the index, {part / tally.seconds:.0f} requests/s",
            flush=True,
        )


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["streams", "requests"])
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    engine, router = start()
    try:
        if options.what == "streams":
            chunks = options.seconds * 1000 // PACE_MS
            mode = f"http://127.0.0.1:{ENGINE_PORT}/_mode?chunks={chunks}&pace_ms={PACE_MS}"
            urllib.request.urlopen(mode, timeout=5).read()
            uvloop.run(streams(router, options.count or 5000, options.seconds))
        else:
            requests(router, options.count or 1_000_000)
    finally:
        router.stop()
        engine.kill()
        engine.wait()


if __name__ == "__main__":
    main()
