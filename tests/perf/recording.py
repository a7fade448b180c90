"""What an event log costs a request, in microseconds of the event loop and in bytes.

    python tests/perf/recording.py

A request's life (arrival, first byte, end with usage) at a Director with 8 endpoints, without a
log, with one on a tmpfs and with one that is encoded and thrown away. Best of several rounds,
turn about, so that a noisy machine is noisy for all. Budget: 5 us a request.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from infctl import provenance
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.fleet import Endpoint, State
from infctl.core.prefix import block_hashes, prefix_seed
from infctl.core.request import Request
from infctl.profile.model import Profile
from infctl.router.recorder import Recorder

ROUNDS, REQUESTS = 25, 2000
PROFILE = Profile.model_validate(
    {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
)
HEADER = provenance.header(PROFILE, seed=1, speed=1.0, wall_s=0.0, now=0.0)
Handle = Callable[[ev.Event, float], object]


def fleet() -> Director:
    """A director with 8 ready endpoints."""
    director = provenance.director(HEADER)
    for number in range(8):
        unit = Endpoint(unit=f"u{number}", url="", models=("m",), pool="p")
        director.handle(ev.EndpointJoined(unit, State.READY), 0.0)
    return director


def recorded(path: str) -> tuple[Recorder, Handle]:
    """The same, recorded."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    made = Recorder(fleet(), descriptor, HEADER, 1 << 34, print)
    return made, made.handle


def round_us(handle: Handle, prompts: list[list[int]], turn: int) -> float:
    """Microseconds a request."""
    usage = ev.Usage(1500, 100, 500)
    started = time.perf_counter()
    for number, blocks in enumerate(prompts):
        name, now = f"r{turn}-{number}", turn * 10.0 + number / 500
        request = Request(
            id=name, model="m", name=f"0123456789abcdef-{number:x}", prompt_bytes=6000,
            blocks=blocks, stream=True, body_bytes=6100, max_tokens=200,
        )  # fmt: skip
        handle(ev.RequestArrived(request), now)
        handle(ev.FirstByte(name), now + 0.1)
        handle(ev.RequestFinished(name, True, usage), now + 0.2)
        if number % 500 == 0:
            handle(ev.Tick(), now + 0.3)
    return (time.perf_counter() - started) / len(prompts) * 1e6


def main() -> None:
    """Print the table."""
    dice, seed = random.Random(1), prefix_seed("m")
    prompts = [block_hashes(dice.randbytes(6000), seed) for _ in range(REQUESTS)]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = f"{folder}/log"
        tmpfs, nowhere = recorded(path), recorded("/dev/null")
        ways = {"no log": fleet().handle, "on a tmpfs": tmpfs[1], "into /dev/null": nowhere[1]}
        best = dict.fromkeys(ways, float("inf"))
        for turn in range(ROUNDS):
            for name, handle in ways.items():
                best[name] = min(best[name], round_us(handle, prompts, turn))
        for made, _ in (tmpfs, nowhere):
            made.close()
        size = os.stat(path).st_size / (ROUNDS * REQUESTS)
    for name, us in best.items():
        print(f"{name:>15} {us:6.1f} us a request, {us - best['no log']:+.1f}")
    print(f"{size:.0f} bytes a request")


if __name__ == "__main__":
    main()
