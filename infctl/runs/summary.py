"""From samples to a RunResult. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from infctl import slo
from infctl.runs.result import Curves, EndpointResult, LengthBucket, RunResult, SelfCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from infctl.runs.spec import Measured, RunSpec, Sample, Tick

LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
LAG_SHARE_MAX = 0.1
CPU_SHARE_MAX = 0.9
_CDF_POINTS = 240
_RATE_STEPS = 60
_LOAD_STEPS = 120
_KINDS_MAX = 20


def summarise(measured: Measured, spec: RunSpec) -> RunResult:
    """The figures of one run. All times are engine time."""
    samples = measured.samples
    good = [s for s in samples if not s.error]
    duration_s = _duration_s(samples)
    ttfts = sorted(s.ttft_ms for s in good if s.ttft_ms is not None)
    timed = [(s.ttft_ms, s.tpot_ms) for s in good if s.ttft_ms is not None]
    output_tokens = sum(s.output_tokens for s in good)
    goodput = slo.goodput(timed, spec.slo, duration_s)
    return RunResult(
        policy=spec.policy,
        requests=len(samples),
        errors=len(samples) - len(good),
        ttft_ms=_percentiles(ttfts),
        tpot_ms=_percentiles(s.tpot_ms for s in good if s.tpot_ms is not None),
        e2e_ms=_percentiles(s.e2e_ms for s in good if s.e2e_ms is not None),
        output_tokens_per_s=_per_s(output_tokens, duration_s),
        goodput=round(goodput, 4),
        prefix_hit_rate=hit_rate(good),
        per_endpoint=_endpoints(samples, duration_s, spec.endpoints),
        good_share=round(goodput * duration_s / len(samples), 5) if samples else 0.0,
        requests_per_s=_per_s(len(good), duration_s),
        duration_s=round(duration_s, 3),
        input_tokens=sum(s.prompt_tokens or s.input_tokens for s in good),
        output_tokens=output_tokens,
        prefix_ceiling=measured.prefix_ceiling,
        skipped=measured.skipped,
        errors_by_kind=dict(Counter(s.error for s in samples if s.error).most_common(_KINDS_MAX)),
        model=measured.model,
        url=spec.url,
        bytes_per_token=measured.bytes_per_token,
        curves=Curves(_cdf(ttfts), _rates(measured.ticks, duration_s), _by_length(good)),
        client=self_check(measured, spec),
        notes=measured.notes,
        simulated=measured.simulated,
    )


def self_check(measured: Measured, spec: RunSpec) -> SelfCheck:
    """Whether the client itself was fast enough for its figures to be about the server.

    Late sends and loop lag (p99, × speed) may be 10 % of the median TTFT each; a client above
    0.9 of a core cannot keep time.
    """
    late = sorted(s.late_ms for s in measured.samples)
    ttfts = sorted(s.ttft_ms for s in measured.samples if s.ttft_ms is not None and not s.error)
    ttft_p50 = slo.percentile(ttfts, 0.5)
    bound_ms = LAG_SHARE_MAX * (ttft_p50 or 0.0)
    late_p99 = slo.percentile(late, 0.99)
    lag_p99 = measured.lag_ms_p99 * spec.speed
    return SelfCheck(
        passed=not (reasons := _reasons(measured, ttft_p50, late_p99 or 0.0, lag_p99, bound_ms)),
        reasons=reasons,
        late_ms_p50=_round(slo.percentile(late, 0.5)),
        late_ms_p99=_round(late_p99),
        loop_lag_ms_p50=round(measured.lag_ms_p50 * spec.speed, 3),
        loop_lag_ms_p99=round(lag_p99, 3),
        lag_ms_max=round(bound_ms, 3),
        cpu_share=measured.cpu_share,
        negative_ttft=measured.negative_ttft,
        connections=measured.connections,
        wall_s=measured.wall_s,
    )


def _reasons(
    measured: Measured, ttft_p50: float | None, late_ms: float, lag_ms: float, bound_ms: float
) -> list[str]:
    reasons: list[str] = []
    if measured.simulated:
        return reasons
    if ttft_p50 is None:
        reasons.append("no request had a first token")
    else:
        if late_ms > bound_ms:
            reasons.append(f"late sends: p99 {late_ms:.0f} ms, at most {bound_ms:.0f} ms is fine")
        if lag_ms > bound_ms:
            reasons.append(
                f"event loop lag: p99 {lag_ms:.0f} ms, at most {bound_ms:.0f} ms is fine"
            )
    if measured.cpu_share > CPU_SHARE_MAX:
        reasons.append(f"the client used {measured.cpu_share:.2f} of a core; it is CPU-bound")
    if measured.negative_ttft:
        reasons.append(f"{measured.negative_ttft} first tokens came before their request was sent")
    return reasons


def hit_rate(samples: Iterable[Sample]) -> float | None:
    """Σ cached / Σ prompt tokens of the engines' usage; None where no engine reports it."""
    prompt = cached = 0
    for sample in samples:
        if sample.prompt_tokens is not None and sample.cached_tokens is not None:
            prompt += sample.prompt_tokens
            cached += sample.cached_tokens
    return round(cached / prompt, 5) if prompt else None


def _percentiles(values: Iterable[float]) -> slo.Percentiles:
    found = slo.percentiles(values)
    return slo.Percentiles(_round(found.p50), _round(found.p90), _round(found.p99))


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _per_s(count: float, duration_s: float) -> float:
    return round(count / duration_s, 4) if duration_s > 0 else 0.0


def _duration_s(samples: Sequence[Sample]) -> float:
    """From the first request sent to the last answer."""
    if not samples:
        return 0.0
    end_s = max(_end_s(s) for s in samples)
    return end_s - min(s.sent_s for s in samples)


def _end_s(sample: Sample) -> float:
    return sample.sent_s + (sample.e2e_ms or sample.ttft_ms or 0.0) / 1000


def _cdf(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """(ms, share of finished requests at or below it), at most 240 points."""
    count = len(ordered)
    picks = sorted({round(i * (count - 1) / (_CDF_POINTS - 1)) for i in range(_CDF_POINTS)})
    return [(round(ordered[i], 1), round((i + 1) / count, 5)) for i in picks] if count else []


def _rates(ticks: Sequence[Tick], duration_s: float) -> list[tuple[float, float]]:
    """Output tokens per second over at most 60 steps; each point is the middle of its step."""
    if len(ticks) < 2 or duration_s <= 0:
        return []
    steps = min(_RATE_STEPS, len(ticks) - 1)
    times = [t.at_s for t in ticks]
    edges = [duration_s * i / steps for i in range(steps + 1)]
    totals = [_total_at(ticks, times, edge) for edge in edges]
    width_s = duration_s / steps
    return [
        (round(edges[i] + width_s / 2, 2), round((totals[i + 1] - totals[i]) / width_s, 1))
        for i in range(steps)
    ]


def _total_at(ticks: Sequence[Tick], times: Sequence[float], at_s: float) -> float:
    high = min(max(bisect_left(times, at_s), 1), len(ticks) - 1)
    before, after = ticks[high - 1], ticks[high]
    width_s = after.at_s - before.at_s
    part = (at_s - before.at_s) / width_s if width_s > 0 else 1.0
    return before.tokens + (after.tokens - before.tokens) * min(max(part, 0.0), 1.0)


def _by_length(good: Sequence[Sample]) -> list[LengthBucket]:
    buckets: dict[int, list[Sample]] = defaultdict(list)
    for sample in good:
        buckets[bisect_left(LENGTHS, sample.prompt_tokens or sample.input_tokens)].append(sample)
    edges = (0, *LENGTHS, None)
    return [_bucket(edges[i] or 0, edges[i + 1], buckets[i]) for i in sorted(buckets)]


def _bucket(low: int, high: int | None, samples: Sequence[Sample]) -> LengthBucket:
    ttft = slo.percentiles(s.ttft_ms for s in samples if s.ttft_ms is not None)
    return LengthBucket(low, high, len(samples), hit_rate(samples), _round(ttft.p50))


def _endpoints(
    samples: Sequence[Sample], duration_s: float, known: Sequence[str]
) -> list[EndpointResult]:
    groups: dict[str, list[Sample]] = defaultdict(list, {name: [] for name in known})
    for sample in samples:
        groups[sample.endpoint].append(sample)
    return [_endpoint(name, groups[name], duration_s) for name in sorted(groups, key=_natural)]


def _natural(name: str) -> tuple[str, int, str]:
    stem = name.rstrip("0123456789")
    return (stem, int(name[len(stem) :] or -1), name)


def _endpoint(name: str, samples: Sequence[Sample], duration_s: float) -> EndpointResult:
    good = [s for s in samples if not s.error]
    return EndpointResult(
        endpoint=name,
        requests=len(samples),
        errors=len(samples) - len(good),
        input_tokens=sum(s.prompt_tokens or s.input_tokens for s in good),
        output_tokens=sum(s.output_tokens for s in good),
        prefix_hit_rate=hit_rate(good),
        ttft_ms=_percentiles(s.ttft_ms for s in good if s.ttft_ms is not None),
        running=_running(samples, duration_s),
    )


def _running(samples: Sequence[Sample], duration_s: float) -> list[tuple[float, float]]:
    """Mean number of open requests per step: request-seconds in the step over its width."""
    if duration_s <= 0:
        return []
    width_s = duration_s / _LOAD_STEPS
    open_s = [0.0] * _LOAD_STEPS
    for sample in samples:
        _spread(open_s, sample.sent_s, _end_s(sample), width_s)
    return [(round((i + 0.5) * width_s, 2), round(s / width_s, 2)) for i, s in enumerate(open_s)]


def _spread(open_s: list[float], start_s: float, end_s: float, width_s: float) -> None:
    start_s = max(0.0, start_s)
    first = min(int(start_s / width_s), len(open_s) - 1)
    last = min(int(end_s / width_s), len(open_s) - 1)
    for step in range(first, last + 1):
        low, high = max(start_s, step * width_s), min(end_s, (step + 1) * width_s)
        open_s[step] += max(0.0, high - low)
