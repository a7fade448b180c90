"""The closed form of a stretch of steps, held against adding up step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.replica.stretch import Stretch


def test_steps_grow_by_the_ramp() -> None:
    stretch = Stretch(100.0, 10.0, 2.0, 4)
    assert [stretch.boundary_ms(n) for n in range(5)] == [100, 110, 122, 136, 152]
    assert stretch.end_ms == 152


@pytest.mark.parametrize(
    ("now_ms", "steps"), [(90, 0), (100, 0), (109.9, 0), (110, 1), (135.9, 2), (136, 3), (500, 4)]
)
def test_whole_steps(now_ms: float, steps: int) -> None:
    assert Stretch(100.0, 10.0, 2.0, 4).whole_steps(now_ms) == steps


def test_a_cut_falls_on_the_next_boundary() -> None:
    stretch = Stretch(0.0, 10.0, 0.0, 5)
    stretch.cut_at(20.0)
    assert (stretch.length, stretch.end_ms) == (2, 20.0)
    stretch.cut_at(0.0)
    assert (stretch.length, stretch.end_ms) == (1, 10.0)


def test_a_cut_never_lengthens() -> None:
    stretch = Stretch(0.0, 10.0, 0.0, 2)
    stretch.cut_at(50.0)
    assert (stretch.length, stretch.end_ms) == (2, 20.0)


@given(
    first=st.floats(0.01, 500),
    ramp=st.floats(0, 0.01),
    length=st.integers(1, 5000),
    share=st.floats(0, 1.2),
)
def test_whole_steps_inverts_boundaries(
    first: float, ramp: float, length: int, share: float
) -> None:
    stretch = Stretch(7.0, first, min(ramp, first), length)
    now_ms = 7.0 + share * (stretch.end_ms - 7.0)
    steps = stretch.whole_steps(now_ms)
    assert 0 <= steps <= length
    assert steps == 0 or stretch.boundary_ms(steps) <= now_ms
    assert steps == length or stretch.boundary_ms(steps + 1) > now_ms
