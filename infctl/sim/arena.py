"""Runs of contenders over one workload, and the two readings: latency at a load, and capacity.

**Load** is the rate as a share of round-robin's saturation (the lowest rate scale at which fewer
than 98 % of the offered output tokens are out by the last arrival). **Capacity** is the highest
rate scale at which 90 % of the requests are good, all are answered, and no class of prompt lengths
has a worse TTFT p90 than under round-robin at that rate. It need not be monotone in the rate, so it
is scanned upwards until too few are good at two rates in a row, and then narrowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl import compose
from infctl.runs.summary import hit_rate
from infctl.sim import readings
from infctl.sim.contenders import Contender, baseline
from infctl.sim.fleet import chunk_tokens
from infctl.sim.run import Prepared, simulate
from infctl.slo import Percentiles, Slo, goodput, percentiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infctl.profile.model import Profile
    from infctl.runs.spec import RunSpec, Sample

WARM_UP = 300
_SCAN_STEP = 0.1
_SCAN_FROM = 0.3
_SCAN_TO = 4.0
_RESOLUTION = 0.01
_SATURATION_STEPS = 7


class Reading(msgspec.Struct, frozen=True):
    """One run, read, its warm-up left out. `good_share` by the full definition, `plain_share` and
    `goodput` (requests a second) by the bare SLO. Hit rates by token, as the mean of each request's
    own, and by quartile of prompt length, shortest first."""

    rate_scale: float
    requests: int
    unanswered: int
    good_share: float
    plain_share: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    goodput: float
    hit_rate: float
    hit_rate_by_request: float
    hit_rate_by_quartile: list[float]
    ttft_ms_p90_by_class: dict[str, float]


class Arena:
    """A workload on a fleet, and what was read of its runs."""

    def __init__(self, profile: Profile, spec: RunSpec, prepared: Prepared) -> None:
        self.base = baseline(profile)
        self.spec = spec
        self.prepared = prepared
        self.slo = Slo(profile.slo.ttft_ms, profile.slo.tpot_ms)
        requests = prepared.plan.requests
        timing = compose.timing(profile.models[0].timing or "")
        chunk = chunk_tokens(profile)
        lengths = {r.input_tokens for r in requests}
        self._unloaded_ms = {n: readings.unloaded_ttft_ms(timing, n, chunk) for n in lengths}
        self._warm_up = min(WARM_UP, len(requests) // 20)
        self._classes: dict[str, tuple[int, float]] = {}
        self._read: dict[tuple[str, float], Reading] = {}

    def read(self, contender: Contender, rate_scale: float) -> Reading:
        """A contender at a rate, simulated once."""
        key = (contender.name, rate_scale)
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._reading(self._run(contender, rate_scale), rate_scale)
        return found

    def _run(self, contender: Contender, rate_scale: float) -> list[Sample]:
        spec = msgspec.structs.replace(self.spec, rate_scale=rate_scale)
        samples = simulate(contender.profile, spec, self.prepared, tell_output=False).samples
        return sorted(samples, key=lambda s: s.sent_s)[self._warm_up :]

    def _reading(self, samples: list[Sample], rate_scale: float) -> Reading:
        self._classes = self._classes or readings.classes(samples)
        answered = [s for s in samples if not s.error]
        timed = [(s.ttft_ms, s.tpot_ms) for s in answered if s.ttft_ms is not None]
        span_s = samples[-1].sent_s - samples[0].sent_s
        return Reading(
            rate_scale=rate_scale,
            requests=len(samples),
            unanswered=len(samples) - len(answered),
            good_share=self._share(samples, readings.TTFT_TIMES),
            plain_share=self._share(samples, 0.0),
            ttft_ms=percentiles(ttft for ttft, _ in timed),
            tpot_ms=percentiles(s.tpot_ms for s in answered if s.tpot_ms is not None),
            goodput=goodput(timed, self.slo, span_s),
            hit_rate=hit_rate(answered) or 0.0,
            hit_rate_by_request=_mean_hit_rate(answered),
            hit_rate_by_quartile=[self._class_hits(answered, f"q{i}") for i in (1, 2, 3, 4)],
            ttft_ms_p90_by_class=readings.ttft_p90_by_class(samples, self._classes),
        )

    def _share(self, samples: list[Sample], times: float) -> float:
        bounds = readings.Bounds(self.slo.ttft_ms, self.slo.tpot_ms, times)
        return readings.good_share(samples, bounds, self._unloaded_ms)

    def _class_hits(self, samples: Sequence[Sample], name: str) -> float:
        above, up_to = self._classes[name]
        return hit_rate([s for s in samples if above < s.input_tokens <= up_to]) or 0.0

    # --- saturation and capacity ------------------------------------------------------------------

    def saturation(self) -> float:
        """The rate scale at which round-robin is saturated, to two percent."""
        low = high = 1.0
        while self._is_saturated(low):
            high, low = low, low / 2
        while not self._is_saturated(high):
            low, high = high, high * 2
        for _ in range(_SATURATION_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_saturated(middle) else (middle, high)
        return round(high, 3)

    def _is_saturated(self, rate_scale: float) -> bool:
        return readings.is_saturated(self._run(self.base, rate_scale))

    def passes(self, contender: Contender, rate_scale: float, plain: bool = False) -> bool:
        """Whether a rate is within a contender's capacity; by the bare SLO if `plain`."""
        mine = self.read(contender, rate_scale)
        if mine.unanswered or _share(mine, plain) < readings.GOOD_SHARE:
            return False
        if plain:
            return True
        base = self.read(self.base, rate_scale)
        return not readings.starved(mine.ttft_ms_p90_by_class, base.ttft_ms_p90_by_class)

    def capacity(self, contender: Contender, saturation: float, plain: bool = False) -> float:
        """The highest rate scale that passes, to a hundredth of the saturation; 0 if none does."""
        best = self._scan(contender, saturation, plain)
        if not best:
            return 0.0
        low, high = best, best + _SCAN_STEP
        while high - low > _RESOLUTION:
            middle = (low + high) / 2
            passes = self.passes(contender, _scale(middle, saturation), plain)
            low, high = (middle, high) if passes else (low, middle)
        return _scale(low, saturation)

    def rank(self, contender: Contender, saturation: float) -> tuple[float, float]:
        """Roughly how good a contender is: the highest load of the scan that passes, and the share
        of good requests at the next one. Tells the parameters of one rule apart at half the cost
        of their capacities."""
        best = self._scan(contender, saturation)
        above = self.read(contender, _scale(best + _SCAN_STEP, saturation))
        return best, above.good_share

    def _scan(self, contender: Contender, saturation: float, plain: bool = False) -> float:
        """The highest load that passes, in steps of a tenth of the saturation; 0 if none does."""
        best, bad, step = 0.0, 0, 0
        while bad < 2 and (load := _SCAN_FROM + step * _SCAN_STEP) < _SCAN_TO:
            rate_scale = _scale(load, saturation)
            if self.passes(contender, rate_scale, plain):
                best = load
            few = _share(self.read(contender, rate_scale), plain) < readings.GOOD_SHARE
            bad = bad + 1 if few else 0
            step += 1
        return best


def _share(reading: Reading, plain: bool) -> float:
    return reading.plain_share if plain else reading.good_share


def _scale(load: float, saturation: float) -> float:
    return round(load * saturation, 4)


def _mean_hit_rate(samples: Sequence[Sample]) -> float:
    rates = [(s.cached_tokens or 0) / s.input_tokens for s in samples]
    return sum(rates) / len(rates) if rates else 0.0
