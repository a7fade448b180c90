"""Pickers choose allowed slots only, by their rule."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from infctl import compose
from infctl.plugin import Fleet
from infctl.profile.model import PluginRef

SCORES = np.array([0.1, -np.inf, 0.9, 0.5, -np.inf])


def picks(ref: object, scores: np.ndarray, times: int = 4000) -> Counter[int]:
    picker = compose.load("picker", ref)  # type: ignore[arg-type]
    dice = random.Random(5)
    return Counter(picker.pick(scores, Fleet(), dice) for _ in range(times))


@pytest.mark.parametrize("name", compose.names("picker"))
def test_only_allowed_slots(name: str) -> None:
    assert set(picks(name, SCORES)) <= {0, 2, 3}
    assert set(picks(name, np.array([-np.inf, -3.0]), 10)) == {1}


def test_best_takes_the_highest_and_draws_among_ties() -> None:
    assert picks("best", SCORES) == {2: 4000}
    ties = picks("best", np.array([1.0, 1.0, 0.0, 1.0]))
    assert set(ties) == {0, 1, 3}
    assert min(ties.values()) > 1200


def test_round_robin_takes_turns_whatever_the_scores() -> None:
    assert picks("round-robin", SCORES, 300) == {0: 100, 2: 100, 3: 100}
    picker = compose.load("picker", "round-robin")
    order = [picker.pick(SCORES, Fleet(), random.Random(1)) for _ in range(6)]
    assert order == [0, 2, 3, 0, 2, 3]


def test_power_of_two_never_takes_the_worst_of_three() -> None:
    chosen = picks("power-of-two", SCORES)
    assert chosen[0] == 0
    assert chosen[2] > chosen[3] > 0


def test_weighted_random_prefers_in_any_unit() -> None:
    share = picks("weighted-random", SCORES)
    ms = picks("weighted-random", SCORES * 10_000)
    assert share == ms
    assert share[2] > share[3] > share[0] > 0
    hot = picks(PluginRef(type="weighted-random", temperature=100.0), SCORES)  # type: ignore[call-arg]
    assert min(hot.values()) > 1200
