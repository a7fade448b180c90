"""Percentiles and goodput, defined once for bench, sim and drill. Pure.

A **percentile** interpolates linearly between order statistics (Hyndman & Fan type 7, numpy's
default): p50 of [1, 2, 3, 4] is 2.5. **Goodput** is the number of requests that met every bound
of the SLO, divided by the seconds from the first arrival to the last answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds in engine ms; a request is good when it meets both."""

    ttft_ms: float = 2000.0
    tpot_ms: float = 50.0


class Percentiles(msgspec.Struct, frozen=True):
    """None where nothing was measured: no value is not a zero."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The `share` (0..1) percentile of ascending values; None of nothing."""
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def percentiles(values: Iterable[float]) -> Percentiles:
    """p50, p90 and p99 of values in any order."""
    ordered = sorted(values)
    return Percentiles(*(percentile(ordered, share) for share in (0.5, 0.9, 0.99)))


def is_good(ttft_ms: float, tpot_ms: float | None, slo: Slo) -> bool:
    """Whether one finished request met the SLO. One output token has no TPOT to miss."""
    return ttft_ms <= slo.ttft_ms and (tpot_ms is None or tpot_ms <= slo.tpot_ms)


def goodput(finished: Iterable[tuple[float, float | None]], slo: Slo, duration_s: float) -> float:
    """Good requests a second, from (ttft_ms, tpot_ms) of the requests that finished."""
    good = sum(is_good(ttft_ms, tpot_ms, slo) for ttft_ms, tpot_ms in finished)
    return good / duration_s if duration_s > 0 else 0.0
