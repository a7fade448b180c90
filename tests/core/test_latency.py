"""What is learned of an endpoint's speed."""

from __future__ import annotations

import random

import pytest

from infctl.core.fleet import Endpoint, Fleet, State
from infctl.core.latency import Latency, Line


def test_a_line_is_found_through_noise() -> None:
    line, noise = Line(), random.Random(1)
    for _ in range(300):
        x = noise.uniform(100, 30_000)
        line.add(x, 200 + 0.03 * x + noise.gauss(0, 20))
    a, b = line.fit()
    assert a == pytest.approx(200, rel=0.1)
    assert b == pytest.approx(0.03, rel=0.05)


def test_a_line_follows_a_change() -> None:
    line = Line()
    for slope in (0.1, 0.02):
        for x in range(1000, 201_000, 1000):
            line.add(x, 50 + slope * x)
    assert line.fit()[1] == pytest.approx(0.02, rel=0.05)


def test_too_few_samples_leave_the_fixed_part_its_usual_share() -> None:
    line = Line(offset=2000.0)
    line.add(1500, 350)
    assert line.fit() == (pytest.approx(200), pytest.approx(0.1))
    for _ in range(10):
        line.add(1500, 350)
    assert line.fit() == (pytest.approx(200), pytest.approx(0.1))


def test_coefficients_are_never_negative() -> None:
    falling, below = Line(), Line()
    for x in (100.0, 200.0, 300.0, 400.0):
        falling.add(x, 500 - x)
        below.add(x, 2 * x - 150)
    assert falling.fit() == (pytest.approx(250, rel=0.05), 0.0)
    assert below.fit()[0] == 0.0
    assert below.fit()[1] > 0


def learning(units: int) -> tuple[Fleet, Latency]:
    fleet = Fleet()
    latency = Latency(fleet)
    for number in range(units):
        slot = fleet.add(Endpoint(unit=f"u{number}", url="", models=(), pool="p"), State.READY)
        latency.join(slot, "p")
    return fleet, latency


def test_an_endpoint_without_samples_borrows_its_pools() -> None:
    fleet, latency = learning(3)
    for n in range(1, 9):
        latency.first_byte(0, "p", n * 1000, n * 1e5, n * 1e5 + 100 + n * 50)
    assert fleet.ms_per_token[0] == pytest.approx(0.05)
    latency.join(2, "p")
    assert fleet.ms_per_token[2] == pytest.approx(0.05)
    assert fleet.overhead_ms[2] == pytest.approx(100)


def test_an_endpoint_slower_than_its_pool_is_seen() -> None:
    fleet, latency = learning(4)
    for n in range(400):
        slot, tokens = n % 4, 1000 + 97 * n % 9000
        slope = 0.1 if slot == 3 else 0.05
        latency.first_byte(slot, "p", tokens, n * 1e5, n * 1e5 + 100 + tokens * slope)
    assert fleet.ms_per_token[3] > 1.4 * fleet.ms_per_token[0]


def test_prompts_queue_one_after_another() -> None:
    fleet, latency = learning(1)
    fleet.cells["ms_per_token"][0] = 0.1
    latency.dispatched(0, 1000, now_ms=5000)
    latency.dispatched(0, 500, now_ms=5010)
    assert fleet.free_at_ms[0] == pytest.approx(5150)
    latency.dispatched(0, 100, now_ms=9000)
    assert fleet.free_at_ms[0] == pytest.approx(9010)


def test_time_spent_behind_another_prompt_is_not_ones_own() -> None:
    fleet, latency = learning(1)
    for round_ms in (0.0, 1e5, 2e5, 3e5):
        latency.first_byte(0, "p", 1000, round_ms, round_ms + 100)
        latency.first_byte(0, "p", 2000, round_ms, round_ms + 300)
    assert fleet.ms_per_token[0] == pytest.approx(0.1)
    assert fleet.overhead_ms[0] == pytest.approx(0, abs=1)
