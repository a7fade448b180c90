"""The load generator's own process: `python -m infctl.bench.client`.

Reads a RunSpec as one JSON line on stdin, writes Progress lines and finally one Measured or Failed
line on stdout. End of file on stdin means the parent is gone: the process ends at once.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.bench.gauge import Gauge
from infctl.client.bodies import PATHS, body
from infctl.client.exchange import Exchange
from infctl.client.http import Pool, Target
from infctl.client.target import inspect
from infctl.errors import InfctlError, TargetError
from infctl.runs.spec import Failed, Measured, Progress, RunSpec, Sample
from infctl.runs.workloads import Plan, fit, load_requests
from infctl.workload.prefix import hit_ceiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infctl.workload.model import WorkloadRequest

    Emit = Callable[[Any], None]

_EARLY_S = 0.0005  # timers have whole ms; half of one early is as exact as they get
_LEAD_S = 0.1
_PROGRESS_S = 0.25
_SWEEP_S = 1.0
_HOPELESS = 100


class Run:
    """One run: sends the plan's requests, gathers samples, ends when all are answered."""

    def __init__(self, spec: RunSpec, plan: Plan, pool: Pool, model: str, ratio: float) -> None:
        self.spec = spec
        self.plan = plan
        self.pool = pool
        self.model = model
        self.bytes_per_token = ratio
        self.gauge = Gauge(spec.speed)
        self.samples: list[Sample] = []
        self.errors = 0
        self.negative_ttft = 0
        self._requests: Iterator[WorkloadRequest] = iter(plan.requests)
        self._next: Exchange | None = None
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start_s = 0.0

    async def run(self, emit: Emit) -> Measured:
        """Send everything and wait for the answers. Raises TargetError when all of them fail."""
        self._next = self._prepare()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        self._start_s = perf_counter() + _LEAD_S
        self.gauge.start(self._start_s)
        if self.spec.concurrency:
            for _ in range(self.spec.concurrency):
                self._send_next()
        else:
            self._send_due()
        watch = asyncio.get_running_loop().create_task(self._watch(emit))
        try:
            await self._finished
        finally:
            watch.cancel()
            self.gauge.stop()
            self.pool.close()
        emit(self.progress())
        return self._measured()

    def progress(self) -> Progress:
        """Counts as of now."""
        total = len(self.plan.requests)
        return Progress(len(self.samples), total, self.errors, self.gauge.running)

    def _prepare(self) -> Exchange | None:
        """The next request, rendered before it is due."""
        request = next(self._requests, None)
        if request is None:
            return None
        data = body(request, self.model, self.spec.api, self.bytes_per_token)
        payload = self.pool.target.post(PATHS[self.spec.api], data)
        return Exchange(payload, self._done, self.gauge.add_tokens, request)

    def _due_s(self, exchange: Exchange) -> float:
        at_s: float = exchange.context.at_s
        return self._start_s + at_s / (self.spec.rate_scale * self.spec.speed)

    def _send_due(self) -> None:
        while self._next is not None:
            left_s = self._due_s(self._next) - perf_counter()
            if left_s > _EARLY_S:
                delay_s = math.floor(left_s * 1000) / 1000
                asyncio.get_running_loop().call_later(delay_s, self._send_due)
                return
            self._send_next()

    def _send_next(self) -> None:
        exchange = self._next
        if exchange is None:
            return
        self.gauge.running += 1
        self.pool.submit(exchange)
        self._next = self._prepare()

    def _done(self, exchange: Exchange) -> None:
        self.gauge.running -= 1
        exchange.error = exchange.error or _nothing(exchange)
        self.samples.append(self._sample(exchange))
        exchange.payload = b""
        self.errors += bool(exchange.error)
        if self.errors == len(self.samples) == _HOPELESS:
            self._give_up(exchange.error)
        if self._next is None and len(self.samples) == len(self.plan.requests):
            if not self._finished.done():
                self._finished.set_result(None)
        elif self.spec.concurrency:
            asyncio.get_running_loop().call_soon(self._send_next)

    def _give_up(self, reason: str) -> None:
        if not self._finished.done():
            text = f"the first {_HOPELESS} requests all failed; the last with: {reason}"
            self._finished.set_exception(TargetError(text, where=self.spec.url))

    def _sample(self, exchange: Exchange) -> Sample:
        speed, request = self.spec.speed, exchange.context
        wrote_s = exchange.wrote_s or exchange.sent_s
        due_s = exchange.sent_s if self.spec.concurrency else self._due_s(exchange)
        sample = Sample(
            sent_s=round((exchange.sent_s - self._start_s) * speed, 4),
            late_ms=round(max(0.0, wrote_s - due_s) * 1000 * speed, 3),
            input_tokens=request.input_tokens,
            endpoint=exchange.endpoint,
            error=exchange.error,
        )
        if exchange.first_s:
            self.negative_ttft += exchange.first_s < wrote_s
            sample.ttft_ms = round((exchange.first_s - exchange.sent_s) * 1000 * speed, 3)
        if not exchange.error:
            self._fill(sample, exchange)
        return sample

    def _fill(self, sample: Sample, exchange: Exchange) -> None:
        usage = exchange.usage()
        scanned = exchange.scanner.content if exchange.scanner else 0
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        sample.prompt_tokens = _whole(usage.get("prompt_tokens"))
        sample.cached_tokens = _whole(cached)
        sample.output_tokens = _whole(usage.get("completion_tokens")) or scanned
        last_s = exchange.last_s or exchange.ended_s
        sample.e2e_ms = round((last_s - exchange.sent_s) * 1000 * self.spec.speed, 3)
        if exchange.first_s and sample.output_tokens > 1:
            decode_ms = (last_s - exchange.first_s) * 1000 * self.spec.speed
            sample.tpot_ms = round(decode_ms / (sample.output_tokens - 1), 4)

    async def _watch(self, emit: Emit) -> None:
        swept_s = perf_counter()
        while True:
            await asyncio.sleep(_PROGRESS_S)
            emit(self.progress())
            now_s = perf_counter()
            if now_s - swept_s >= _SWEEP_S:
                swept_s = now_s
                self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        for connection, exchange in self.pool.busy():
            if now_s - max(exchange.touched_s, exchange.wrote_s) > self.spec.timeout_s:
                connection.abort("timeout")

    def _measured(self) -> Measured:
        return Measured(
            samples=self.samples,
            ticks=self.gauge.ticks,
            skipped=self.plan.skipped,
            model=self.model,
            bytes_per_token=self.bytes_per_token,
            prefix_ceiling=round(hit_ceiling(self.plan.requests), 5),
            notes=self.plan.notes,
            lag_ms_p50=round(self.gauge.lag_ms(0.5), 3),
            lag_ms_p99=round(self.gauge.lag_ms(0.99), 3),
            cpu_share=round(self.gauge.cpu_share, 4),
            wall_s=round(self.gauge.wall_s, 3),
            negative_ttft=self.negative_ttft,
            connections=self.pool.peak,
        )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


async def measure(spec: RunSpec, emit: Emit) -> Measured:
    """Read the workload, ask the target what it serves, run. Raises InfctlError."""
    requests, notes = load_requests(spec)
    pool = Pool(Target(spec.url, spec.headers), spec.connections_max)
    facts = await inspect(pool, spec)
    planned = fit(spec, requests, notes, facts.context_tokens)
    return await Run(spec, planned, pool, facts.model, facts.bytes_per_token).run(emit)


def _emit(message: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def _main(spec: RunSpec) -> Measured:
    asyncio.get_running_loop().add_reader(0, _parent_gone)
    return await measure(spec, _emit)


def _parent_gone() -> None:
    if not os.read(0, 4096):
        os._exit(1)


def _nothing(exchange: Exchange) -> str:
    """What is wrong with a complete answer in which no token came, neither seen nor counted."""
    if exchange.first_s or exchange.usage().get("completion_tokens"):
        return ""
    return "an answer without a token"


def main() -> int:
    """Run one spec from stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; see _parent_gone
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 65_536)):
        line += more
    try:
        import uvloop

        run: Callable[..., Any] = uvloop.run
    except ImportError:
        run = asyncio.run
    try:
        _emit(run(_main(msgspec.json.decode(line, type=RunSpec))))
    except InfctlError as error:
        _emit(Failed(type(error).__name__, error.message, error.where, error.hint))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
