"""The client of the router benchmark: closed loop, one connection per worker, few allocations."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SHARED = 0.5
"""Share of each prompt that other prompts start with too."""


@dataclass(frozen=True)
class Pool:
    """Requests without end, no two alike: a first half out of eight that others share, a number,
    and a second half that is therefore new to every prefix cache."""

    heads: tuple[bytes, ...]
    tail: bytes

    def take(self, number: int) -> bytes:
        """The request with this number."""
        return b"%s%010d%s" % (self.heads[number % len(self.heads)], number, self.tail)


def pool(prompt_bytes: int, chunks: int) -> Pool:
    """Completion requests of this size; `chunks` above 0 asks for a stream."""
    dice = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz      "
    shared = int(prompt_bytes * SHARED)
    rest = {"max_tokens": chunks or 16, "stream": chunks > 0}
    own = "".join(dice.choices(letters, k=prompt_bytes - shared - 10))
    tail = f'{own}",{json.dumps(rest)[1:]}'.encode()
    heads = []
    for _ in range(8):
        start = '{"model":"mock","prompt":"' + "".join(dice.choices(letters, k=shared))
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: perf\r\n"
            "Content-Type: application/json\r\nAccept: */*\r\n"
            f"Content-Length: {len(start) + 10 + len(tail)}\r\n\r\n"
        )
        heads.append((head + start).encode())
    return Pool(tuple(heads), tail)


@dataclass
class Tally:
    """What a run saw. Latencies in seconds, to the first byte of the body."""

    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    seconds: float = 0.0


class Worker(asyncio.Protocol):
    """One connection sending one request after another."""

    def __init__(self, take: Callable[[], bytes | None], tally: Tally) -> None:
        self.take = take
        self.tally = tally
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.send()

    def send(self) -> None:
        request = self.take()
        if request is None:
            self.transport.close()
            if not self.done.done():
                self.done.set_result(None)
            return
        self.head = b""
        self.length: int | None = None
        self.tail = b""
        self.seen = 0
        self.sent = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.head is not None:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self.head[:end].lower(), self.head[end + 4 :]
            self.head = None  # type: ignore[assignment]
            if not head.startswith(b"http/1.1 200"):
                self.tally.failures += 1
            at = head.find(b"content-length:")
            self.length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else None
            if not data:
                return
        if not self.seen:
            self.tally.latencies.append(time.perf_counter() - self.sent)
        self.seen += len(data)
        if self.length is None:
            self.tail = (self.tail + data)[-5:]
            if self.tail == b"0\r\n\r\n":
                self.send()
        elif self.seen >= self.length:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.tally.failures += 1
            self.done.set_result(None)


async def run(port: int, pool: Pool, first: int, total: int, concurrency: int) -> Tally:
    """Send `total` requests, numbered from `first` on, over `concurrency` connections."""
    tally, sent = Tally(), 0

    def take() -> bytes | None:
        nonlocal sent
        if sent >= total:
            return None
        sent += 1
        return pool.take(first + sent)

    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    workers = [
        (await loop.create_connection(lambda: Worker(take, tally), "127.0.0.1", port))[1]
        for _ in range(min(concurrency, total))
    ]
    async with asyncio.timeout(120):
        await asyncio.gather(*[w.done for w in workers])
    tally.seconds = time.perf_counter() - started
    return tally
