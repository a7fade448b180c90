"""Runs the experiments against an engine over HTTP.

Rounds are outermost, so that whatever ends the measuring early costs repetitions before it costs
experiments. Every prompt is text that was never sent before, but for prefixes sent on purpose.
"""

from __future__ import annotations

import asyncio
import os
from math import gcd
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from infctl import compose
from infctl.calibrate.fit import Measurement, Times, times
from infctl.calibrate.plan import Ask, Experiment, experiments
from infctl.client.bodies import PATHS, body
from infctl.client.exchange import Exchange
from infctl.client.http import Pool, Target
from infctl.client.target import Facts, inspect
from infctl.engine import Probe
from infctl.errors import TargetError
from infctl.runs.spec import RunSpec
from infctl.workload.model import Segment, WorkloadRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[str], None]

ROUNDS = 5
_CONTEXT_TOKENS = 8192
_GENERIC = "openai"
"""Recognises whatever lists models, and knows none of its metrics."""

_SETTLE_S = 0.05
_ASK_S = 30.0
_ANSWER_S = 120.0


class Found(msgspec.Struct):
    """What was measured so far; `trouble` says why there is not more."""

    model: str
    engine: str = ""
    kv_capacity_tokens: int = 0
    block_tokens: int = 16
    planned: int = 0
    measured: list[Measurement] = []
    trouble: str = ""


async def measure(
    url: str, model: str, kv_capacity_tokens: int | None, budget_s: float, tell: Tell
) -> Found:
    """Measure an engine for so long at most. Raises TargetError where nothing can be measured; what
    fails later ends the measuring."""
    spec = RunSpec(url=url, model=model)
    pool = Pool(Target(url, {}), 256)
    try:
        facts = await inspect(pool, spec)
        found = Found(facts.model)
        found.engine, reported = await _engine(pool)
        found.kv_capacity_tokens = kv_capacity_tokens or reported
        if not found.kv_capacity_tokens:
            hint = "Give it with --kv-capacity-tokens."
            raise TargetError("the engine's metrics tell no KV capacity", where=url, hint=hint)
        await _Session(pool, facts, found, perf_counter() + budget_s, tell).run()
    finally:
        pool.close()
    return found


async def _engine(pool: Pool) -> tuple[str, int]:
    """Its kind, '' where none of the codecs knows it, and its KV capacity, 0 where it says none."""
    models = await pool.fetch(pool.target.get("/v1/models"), _ASK_S)
    metrics = await pool.fetch(pool.target.get("/metrics"), _ASK_S)
    text = b"".join(metrics.body).decode(errors="replace") if metrics.status == 200 else ""
    probe = Probe(b"".join(models.body), text)
    for kind in compose.names("engine"):
        codec = compose.engine(kind)
        if kind != _GENERIC and codec.recognises(probe):
            loads = codec.loads(text).values()
            return kind, max((load.kv_capacity_tokens or 0 for load in loads), default=0)
    return "", 0


class _Session:
    def __init__(
        self, pool: Pool, facts: Facts, found: Found, deadline_s: float, tell: Tell
    ) -> None:
        self.pool = pool
        self.facts = facts
        self.found = found
        self.deadline_s = deadline_s
        self.tell = tell
        self._ids = int.from_bytes(os.urandom(6), "big") << 20

    async def run(self) -> None:
        """All experiments, round by round, until the time is up or one fails twice."""
        planned = experiments(self.facts.context_tokens or _CONTEXT_TOKENS)
        self.found.planned = len(planned)
        rounds: list[list[tuple[Experiment, Times]]] = [[] for _ in planned]
        try:
            await self._warm_up(planned)
            for number in range(ROUNDS):
                for index, experiment in enumerate(planned):
                    if perf_counter() > self.deadline_s:
                        self.found.trouble = "the time was up"
                        return
                    self.tell(f"round {number + 1} of {ROUNDS}: {experiment.group}")
                    rounds[index].append(await self._twice(experiment))
        except TargetError as error:
            self.found.trouble = error.message
        finally:
            self._keep(rounds)

    def _keep(self, rounds: list[list[tuple[Experiment, Times]]]) -> None:
        done = [each for each in rounds if each]
        self.found.measured = [Measurement(e[0][0], tuple(t for _, t in e)) for e in done]
        cached = [a.prefix for m in self.found.measured for a in m.experiment.asks if a.prefix]
        self.found.block_tokens = gcd(*cached) if cached else 16

    async def _warm_up(self, planned: list[Experiment]) -> None:
        """The first of each size compiles and allocates."""
        for experiment in (planned[0], planned[len(planned) // 3], planned[-1]):
            self.tell("warming up")
            await self._twice(experiment)

    async def _twice(self, experiment: Experiment) -> tuple[Experiment, Times]:
        try:
            return await self._once(experiment)
        except TargetError:
            return await self._once(experiment)

    async def _once(self, experiment: Experiment) -> tuple[Experiment, Times]:
        """The experiment as it was (tokens as the engine counts them), and its figures."""
        await asyncio.sleep(_SETTLE_S)
        prefixes = [self._segment(ask.prefix) if ask.prefix else None for ask in experiment.asks]
        for prefix in prefixes:
            if prefix is not None:
                await self._send(WorkloadRequest(0.0, (prefix,), 1))
        requests = [
            WorkloadRequest(
                0.0, (*([prefix] if prefix else []), self._segment(ask.new)), ask.output
            )
            for ask, prefix in zip(experiment.asks, prefixes, strict=True)
        ]
        start_s = perf_counter()
        sent = [
            self._send(request, start_s + ask.at_ms / 1000.0)
            for ask, request in zip(experiment.asks, requests, strict=True)
        ]
        exchanges = await asyncio.gather(*sent)
        asks = [_as_counted(a, e.usage()) for a, e in zip(experiment.asks, exchanges, strict=True)]
        figures = [
            ((e.first_s - e.sent_s) * 1000.0, (e.last_s - e.first_s) * 1000.0) for e in exchanges
        ]
        counted = Experiment(experiment.group, tuple(asks))
        return counted, times(figures, counted)

    def _segment(self, tokens: int) -> Segment:
        self._ids += 1
        return Segment(self._ids, tokens)

    async def _send(self, request: WorkloadRequest, at_s: float = 0.0) -> Exchange:
        if (wait_s := at_s - perf_counter()) > 0.0:
            await asyncio.sleep(wait_s)
        data = body(request, self.facts.model, "completions", self.facts.bytes_per_token)
        payload = self.pool.target.post(PATHS["completions"], data)
        exchange = await self.pool.fetch(payload, _ANSWER_S)
        if exchange.error or not exchange.first_s:
            raise TargetError(f"a request failed: {exchange.error or 'no token came'}")
        return exchange


def _as_counted(ask: Ask, usage: dict[str, Any]) -> Ask:
    """The ask with the engine's own token counts, as far as it tells them."""
    total = usage.get("prompt_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    output = usage.get("completion_tokens")
    if not isinstance(total, int):
        total = ask.prefix + ask.new
    if not isinstance(cached, int):
        cached = 0
        if ask.prefix:
            raise TargetError(
                "the engine does not tell cached tokens",
                hint="Start vLLM with --enable-prompt-tokens-details, SGLang with "
                "--enable-cache-report.",
            )
    return Ask(
        ask.at_ms,
        max(total - cached, 1),
        output if isinstance(output, int) and output > 0 else ask.output,
        cached,
    )
