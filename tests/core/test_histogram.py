"""Counts per bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.core.histogram import Histogram


def test_buckets_are_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.003, 500.0):
        histogram.add(seconds)
    buckets = dict(histogram.cumulative())
    assert (buckets["0.001"], buckets["0.005"], buckets["120.0"], buckets["+Inf"]) == (1, 2, 2, 3)


@given(st.lists(st.floats(-1e6, 1e6)))
def test_nothing_is_lost(values: list[float]) -> None:
    histogram = Histogram((0.0, 10.0))
    for value in values:
        histogram.add(value)
    assert [count for _, count in histogram.cumulative()] == [
        sum(v <= 0.0 for v in values), sum(v <= 10.0 for v in values), len(values)
    ]  # fmt: skip
    assert histogram.total == pytest.approx(sum(values))
