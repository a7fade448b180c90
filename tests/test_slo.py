import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.slo import Percentiles, Slo, goodput, is_good, percentile, percentiles

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@given(values, st.floats(0, 1))
def test_percentile_is_numpys_linear(numbers: list[float], share: float) -> None:
    found = percentile(sorted(numbers), share)
    assert found == pytest.approx(float(np.quantile(numbers, share)), rel=1e-6, abs=1e-6)


def test_known_percentiles() -> None:
    assert percentiles([4, 1, 3, 2]) == Percentiles(2.5, pytest.approx(3.7), pytest.approx(3.97))
    assert percentiles([]) == Percentiles(None, None, None)


def test_a_request_must_meet_every_bound() -> None:
    slo = Slo(ttft_ms=100, tpot_ms=10)
    assert is_good(100, 10, slo)
    assert not is_good(101, 1, slo)
    assert not is_good(1, 11, slo)
    assert is_good(1, None, slo), "one token has no time between tokens"


def test_goodput_counts_good_requests_a_second() -> None:
    finished = [(50.0, 5.0), (500.0, 5.0), (50.0, 50.0), (60.0, None)]
    assert goodput(finished, Slo(100, 10), duration_s=4) == 0.5
    assert goodput(finished, Slo(100, 10), duration_s=0) == 0.0
