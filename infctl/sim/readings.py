"""What a comparison reads off a run: who met the SLO, who was starved, who was saturated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.slo import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infctl.runs.spec import Sample
    from infctl.timing import TimingModel

LONG_TOKENS = 30_000
TTFT_TIMES = 3.0
GOOD_SHARE = 0.9
TOLERANCE = 1.02
_DONE_SHARE = 0.98


class Bounds(msgspec.Struct, frozen=True):
    """When a request is good: TTFT within max(`ttft_ms`, `times` × its unloaded TTFT) and TPOT
    within `tpot_ms`. `times` 0 leaves `ttft_ms` alone."""

    ttft_ms: float = 2000.0
    tpot_ms: float = 50.0
    times: float = TTFT_TIMES


def unloaded_ttft_ms(timing: TimingModel, prompt_tokens: int, chunk_tokens: int) -> float:
    """TTFT of a prompt that is alone on an engine with an empty cache."""
    total_ms, before = timing.ttft_overhead_ms, 0
    while before < prompt_tokens:
        chunk = min(chunk_tokens, prompt_tokens - before)
        total_ms += timing.prefill_ms(chunk, before)
        before += chunk
    return total_ms


def good_share(samples: Sequence[Sample], bounds: Bounds, unloaded_ms: dict[int, float]) -> float:
    """The share of requests that are good; `unloaded_ms` by prompt tokens."""
    good = 0
    for sample in samples:
        if sample.error or sample.ttft_ms is None:
            continue
        bound_ms = bounds.ttft_ms
        if bounds.times:
            bound_ms = max(bound_ms, bounds.times * unloaded_ms[sample.input_tokens])
        good += sample.ttft_ms <= bound_ms and (sample.tpot_ms or 0.0) <= bounds.tpot_ms
    return good / len(samples) if samples else 0.0


def classes(samples: Sequence[Sample]) -> dict[str, tuple[int, float]]:
    """The classes of prompt lengths that must not be starved: name → (above, up to) tokens. The
    quartiles of these samples, and what is above 30,000 tokens."""
    ordered = sorted(s.input_tokens for s in samples)
    edges = [percentile(ordered, share) or 0.0 for share in (0.25, 0.5, 0.75)]
    bounds = [0.0, *edges, float("inf")]
    found = {f"q{i + 1}": (int(bounds[i]), bounds[i + 1]) for i in range(4)}
    return found | {"long": (LONG_TOKENS, float("inf"))}


def ttft_p90_by_class(
    samples: Sequence[Sample], lengths: dict[str, tuple[int, float]]
) -> dict[str, float]:
    """p90 of TTFT (ms) of each class; a class without a first token is left out."""
    found = {}
    for name, (above, up_to) in lengths.items():
        values = sorted(
            s.ttft_ms for s in samples if s.ttft_ms is not None and above < s.input_tokens <= up_to
        )
        p90 = percentile(values, 0.9)
        if p90 is not None:
            found[name] = p90
    return found


def starved(mine: dict[str, float], base: dict[str, float]) -> list[str]:
    """Classes whose p90 is worse than the baseline's by more than two percent."""
    return [name for name, p90 in mine.items() if p90 > base.get(name, p90) * TOLERANCE]


def done_share(samples: Sequence[Sample]) -> float:
    """The share of the offered output tokens that are out by the last arrival; below 0.98 the load
    is beyond saturation. Offered tokens of requests that failed count as not done."""
    last_s = max(s.sent_s for s in samples)
    done = offered = 0.0
    for sample in samples:
        offered += sample.output_tokens
        done += _done(sample, last_s)
    return done / offered if offered else 0.0


def _done(sample: Sample, at_s: float) -> float:
    """Tokens out by then, evenly between the first and the last one."""
    if sample.error or sample.ttft_ms is None or sample.e2e_ms is None:
        return 0.0
    first_s = sample.sent_s + sample.ttft_ms / 1000.0
    last_s = sample.sent_s + sample.e2e_ms / 1000.0
    if at_s >= last_s:
        return sample.output_tokens
    if at_s < first_s:
        return 0.0
    return sample.output_tokens * (at_s - first_s) / (last_s - first_s)


def is_saturated(samples: Sequence[Sample]) -> bool:
    """Whether the fleet falls behind this load."""
    return done_share(samples) < _DONE_SHARE
