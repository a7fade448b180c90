"""What exact tokenising adds to a request: time before it is sent on, CPU, and event loop lag.

    python tests/perf/tokenising.py

One router in this process, engines and clients replaced by stubs, so that what is measured is the
router alone: from a request's last byte to the engine's first. The tokenizer is a byte-level BPE of
16,000 tokens trained on this repository's own sources and documents, and prompts are pieces of
them. `new`: the second half of each prompt was never seen; `turn`: all but its last 2 kB was, as in
a conversation. Lag: how late a timer due each millisecond is while requests come one at a time.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from infctl import compose
from infctl.core.fleet import Endpoint, State
from infctl.profile.model import Profile
from infctl.router.driver import Router
from infctl.router.server import Server
from infctl.router.tokenising import Tokenising
from infctl.router.tokenizer import ModelTokenizer
from infctl.router.upstream import Link

ROOT = Path(__file__).parents[2]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
REQUESTS = 150
REST_S = 0.002
BYTES_PER_S = 600_000
"""New text in a second at most, so that the router's cap on tokens is not what is measured."""


class Stub:
    """A transport that swallows, and tells when something was written."""

    def __init__(self) -> None:
        self.written = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written.set()

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: 0) if name == "get_write_buffer_size" else (lambda *_: None)


def corpus() -> str:
    """The repository's own text."""
    files = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("infctl/**/*.py")])
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def train(folder: Path, text: str) -> str:
    """A model's folder with a tokenizer."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=16_000, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([text], trainer)
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def prompts(text: str, size: int, new: bool) -> Iterator[str]:
    """Prompts without end: half of each is new, or its last 2 kB."""
    dice = random.Random(size)

    def piece(length: int) -> str:
        words: list[str] = []
        while sum(map(len, words)) < length:  # lines in another order: never seen like this
            at = dice.randrange(len(text) - 80)
            words.append(text[at : at + 80])
        return " and ".join(words)[:length]

    fresh = size // 2 if new else min(2000, size // 2)
    heads = [piece(size - fresh) for _ in range(4)]
    while True:
        yield dice.choice(heads) + " then " + piece(fresh)


class Bench:
    """A router, one client connection and one engine connection."""

    def __init__(self) -> None:
        profile = Profile.model_validate(
            {"metadata": {"name": "x"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
        )
        kinds = {name: compose.engine(name) for name in ("vllm",)}
        self.router = Router(compose.pipeline(profile), profile.routing, kinds, seed=1)
        unit = Endpoint(unit="u", url="http://127.0.0.1:1", models=("m",), engine="vllm")
        self.router.join(unit, State.READY)
        (pool,) = self.router.pools.values()
        self.sent = Stub()
        link = Link(pool)
        link.connection_made(self.sent)  # type: ignore[arg-type]
        pool.put_back(link)
        self.connection = Server(self.router, profile.routing.limits)()
        self.connection.connection_made(Stub())  # type: ignore[arg-type]

    async def one(self, prompt: str) -> float:
        """One request; seconds until it was sent on."""
        body = json.dumps({"model": "m", "prompt": prompt}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {len(body)}\r\n\r\n"
        self.sent.written.clear()
        began = time.perf_counter()
        self._feed(head.encode() + body)
        await self.sent.written.wait()
        took = time.perf_counter() - began
        exchange: Any = self.connection.exchange
        exchange.leg.link.data_received(ANSWER)
        return took

    def _feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            buffer = self.connection.get_buffer(65536)
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            self.connection.buffer_updated(size)
            at += size


async def lag(late: list[float]) -> None:
    """Note how late a timer is, each millisecond."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        late.append(loop.time() - due)


async def measure(
    tokenizer: ModelTokenizer | None, drawn: Iterator[str], fresh: int
) -> dict[str, Any]:
    """Latency, CPU and lag over some requests with so many new bytes each."""
    rest_s = max(REST_S, fresh / BYTES_PER_S)
    requests = REQUESTS if rest_s < 0.01 else REQUESTS // 2
    bench = Bench()
    if tokenizer is not None:
        bench.router.tokenising = Tokenising(bench.router, {"m": tokenizer})
    for _ in range(12):
        await bench.one(next(drawn))
        await asyncio.sleep(rest_s)
    some = [next(drawn) for _ in range(requests)]
    late: list[float] = []
    task = asyncio.get_running_loop().create_task(lag(late))
    times = []
    for prompt in some:
        times.append(await bench.one(prompt))
        await asyncio.sleep(rest_s)
    task.cancel()
    cpu = []
    for prompt in [next(drawn) for _ in range(requests)]:
        await asyncio.sleep(rest_s)
        began = time.process_time()
        await bench.one(prompt)
        cpu.append(time.process_time() - began)
    found = {
        "p50_ms": statistics.median(times) * 1e3,
        "p99_ms": statistics.quantiles(times, n=100)[98] * 1e3,
        "cpu_us": statistics.median(cpu) * 1e6,
        "lag_p99_ms": statistics.quantiles(late, n=100)[98] * 1e3,
        "lag_max_ms": max(late) * 1e3,
        "results": "",
    }
    if bench.router.tokenising is not None:
        stats = bench.router.tokenising.stats
        found["results"] = " ".join(f"{n} {k}" for k, n in stats.results.items() if n)
        bench.router.tokenising.close()
    return found


def main() -> None:
    """Print the table."""
    import uvloop

    text = corpus()
    with tempfile.TemporaryDirectory() as name:
        tokenizer = ModelTokenizer(train(Path(name), text))
    print(
        f"{'prompt':<14}{'':<8}{'p50 ms':>8}{'p99 ms':>8}{'CPU us':>8}{'lag p99':>9}{'max ms':>8}"
    )
    for size in (2_000, 100_000):
        for new in (True, False):
            drawn = prompts(text, size, new)
            for how in (None, tokenizer):
                found = uvloop.run(measure(how, drawn, size // 2 if new else 2000))
                label = f"{size // 1000} kB {'new' if new else 'turn'}"
                figures = [found[k] for k in ("p50_ms", "p99_ms", "cpu_us", "lag_p99_ms")]
                print(
                    f"{label:<14}{'exact' if how else 'text':<8}{figures[0]:>8.2f}"
                    f"{figures[1]:>8.2f}{figures[2]:>8.0f}{figures[3]:>9.2f}"
                    f"{found['lag_max_ms']:>8.2f}  {found['results']}"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
