"""The two readings, on contenders whose figures are given and on small simulations."""

from __future__ import annotations

import msgspec
import pytest

from infctl.runs.spec import RunSpec
from infctl.sim import contenders
from infctl.sim.arena import Arena, Reading
from infctl.sim.run import prepare
from infctl.slo import Percentiles


def reading(rate: float, good: float, q4: float = 100.0, unanswered: int = 0) -> Reading:
    return Reading(
        rate_scale=rate,
        requests=100,
        unanswered=unanswered,
        good_share=good,
        plain_share=good - 0.05,
        ttft_ms=Percentiles(1.0, 2.0, 3.0),
        tpot_ms=Percentiles(1.0, 2.0, 3.0),
        goodput=1.0,
        hit_rate=0.0,
        hit_rate_by_request=0.0,
        hit_rate_by_quartile=[0.0] * 4,
        ttft_ms_p90_by_class={"q4": q4},
    )


class Scripted(Arena):
    """An arena whose readings are a function of the rate."""

    def __init__(self, profile, good, q4=lambda rate: 100.0, unanswered=lambda rate: 0) -> None:
        self.base = contenders.baseline(profile)
        self.good, self.q4, self.unanswered = good, q4, unanswered
        self.asked: set[float] = set()

    def read(self, contender, rate_scale: float) -> Reading:
        if contender is self.base:
            return reading(rate_scale, 1.0)
        self.asked.add(rate_scale)
        return reading(
            rate_scale, self.good(rate_scale), self.q4(rate_scale), self.unanswered(rate_scale)
        )


def test_capacity_is_where_too_few_are_good(fleet) -> None:
    arena = Scripted(fleet(), lambda rate: 1.0 - rate / 20.0)
    own = contenders.own(fleet())
    assert arena.capacity(own, saturation=2.0) == pytest.approx(2.0, abs=0.02)
    assert arena.capacity(own, saturation=2.0, plain=True) == pytest.approx(1.0, abs=0.02)
    assert max(arena.asked) < 3.0  # it stops soon after


def test_capacity_may_lie_above_a_rate_that_fails(fleet) -> None:
    """A class that is worse than round-robin's at a low load does not end the search."""
    arena = Scripted(fleet(), lambda rate: 1.0 - rate / 20.0, q4=lambda r: 99.0 if r > 1.5 else 110)
    assert arena.capacity(contenders.own(fleet()), 2.0) == pytest.approx(2.0, abs=0.02)


def test_whoever_starves_a_class_or_a_request_has_no_capacity(fleet) -> None:
    starving = Scripted(fleet(), lambda rate: 0.99 - rate / 40.0, q4=lambda rate: 103.0)
    dropping = Scripted(fleet(), lambda rate: 0.99 - rate / 40.0, unanswered=lambda rate: 1)
    for arena in (starving, dropping):
        assert arena.capacity(contenders.own(fleet()), 2.0) == 0.0
    tolerated = Scripted(fleet(), lambda rate: 1.0 - rate / 20.0, q4=lambda rate: 101.9)
    assert tolerated.capacity(contenders.own(fleet()), 2.0) > 1.9


def test_a_run_is_read_without_its_warm_up(fleet) -> None:
    profile = fleet(units=2)
    spec = RunSpec(url="", workload="code", limit=400)
    arena = Arena(profile, spec, prepare(profile, spec))
    found = arena.read(contenders.own(profile), 1.0)
    assert found.requests == 400 - 20
    assert found.unanswered == 0
    assert set(found.ttft_ms_p90_by_class) <= {"q1", "q2", "q3", "q4", "long"}
    assert 0.0 <= found.plain_share <= found.good_share <= 1.0
    assert found is arena.read(contenders.own(profile), 1.0)


def test_round_robin_is_saturated_where_it_falls_behind(fleet) -> None:
    profile = fleet(units=1, args={"max_num_seqs": 8})
    spec = RunSpec(url="", workload="random", parameters={"rate_rps": 1.0}, limit=300)
    arena = Arena(profile, spec, prepare(profile, spec))
    found = arena.saturation()
    assert arena._is_saturated(found * 1.1)
    assert not arena._is_saturated(found * 0.9)


def test_readings_are_plain_data(fleet) -> None:
    assert msgspec.json.decode(msgspec.json.encode(reading(1.0, 0.9)), type=Reading)
