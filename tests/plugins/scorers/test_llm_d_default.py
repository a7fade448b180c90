"""llm-d's default, decided by hand: 3 × cached share + 2 × queue's place + 2 × free KV memory."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl import compose
from infctl.errors import InputError
from infctl.profile.model import PluginRef
from infctl.testing import check_scorer
from infctl_plugins.scorers.llm_d_default import LlmDDefault

from .decisions import SEEDS, THOUSAND, chosen, fleet_of, prompt

NAME = "llm-d-default"

DECISIONS = [
    # 3 + 0 + 2 = 5 against 0 + 2 + 2 = 4
    ("a whole prompt is worth a queue", [9, 0], [0, 0], [1000, 0], {0}),
    # 1.5 + 0 + 2 = 3.5 against 4
    ("half of it is not", [9, 0], [0, 0], [500, 0], {1}),
    # 3·⅔ + 0 + 2 = 4 against 4
    ("two thirds are as good", [9, 0], [0, 0], [1000 * 2 / 3, 0], {0, 1}),
    # 0 + 1 + 2, 0.6 + 2·0.5 + 2 = 3.6; 0 + 2 + 1.5 = 3.5; 0 + 0 + 2
    ("the sum decides", [4, 0, 8], [0, 0.25, 0], [200, 0, 0], {0}),
    # 0.45 + 1 + 2 = 3.45 against 3.5
    ("and a little less prefix does not", [4, 0, 8], [0, 0.25, 0], [150, 0, 0], {1}),
    # queues equal: 1 for all, so 3·0.1 + 2 + 2·0.5 = 3.3 against 2 + 2·0.7 = 3.4
    ("equal queues count for all alike", [7, 7], [0.5, 0.3], [100, 0], {1}),
    # the place is relative: one waiting request weighs as much as a hundred
    ("one more waiting is the longest queue", [1, 0], [0, 0], [600, 0], {1}),
    ("KV memory alone", [0, 0, 0], [0.9, 0.2, 0.5], [0, 0, 0], {1}),
    ("KV use above 1 is 1", [0, 0], [1.4, 1.0], [0, 0], {0, 1}),
    ("more than the prompt is all of it", [0, 0], [0, 0], [1500, 1000], {0, 1}),
    ("all equal", [2, 2, 2], [0.5, 0.5, 0.5], [0, 0, 0], {0, 1, 2}),
    ("nothing cached, nothing reported", [0, 0], [0, 0], [0, 0], {0, 1}),
    ("one endpoint", [5], [0.5], [0], {0}),
]


@pytest.mark.parametrize(("why", "waiting", "kv_usage", "cached", "expected"), DECISIONS)
def test_decisions(
    why: str,
    waiting: list[float],
    kv_usage: list[float],
    cached: list[float],
    expected: set[int],
) -> None:
    made = fleet_of(len(waiting), waiting=waiting, kv_usage=kv_usage)
    assert chosen(NAME, made, prompt(), cached) == expected, why


def test_only_ready_endpoints_count() -> None:
    # Without u0 the longest queue is 2: 3·0.5 + 0 + 2 = 3.5 against 4; with it 1.5 + 1.96 + 2.
    made = fleet_of(3, down=[0], waiting=[100, 2, 0])
    assert chosen(NAME, made, prompt(), [0, 500, 0]) == {2}
    assert chosen(NAME, fleet_of(2, down=[0, 1]), prompt()) == set()


def test_queues_of_other_models_are_no_measure() -> None:
    # 2 + 2 × 0.6 against 0 + 2: the longest queue is 2, and not the other model's 100
    made = fleet_of(3, others=[0], waiting=[100, 1, 2], kv_usage=[0.0, 0.4, 0.0])
    assert chosen(NAME, made, prompt()) == {1}


def test_an_empty_prompt_goes_by_queue_and_memory() -> None:
    made = fleet_of(2, waiting=[1, 0], kv_usage=[0.0, 0.9])  # 2 against 2 + 0.2
    assert chosen(NAME, made, prompt(0.0), [0, 0]) == {1}


def test_parameters() -> None:
    made = fleet_of(2, waiting=[9, 0])
    assert chosen(NAME, made, prompt(), [500, 0], prefix_weight=5) == {0}
    assert chosen(NAME, made, prompt(), [1000, 0], queue_weight=4) == {1}
    used = fleet_of(2, kv_usage=[0.5, 0.0])
    assert chosen(NAME, used, prompt(), [300, 0], kv_weight=2) == {1}
    assert chosen(NAME, used, prompt(), [300, 0], kv_weight=1) == {0}
    zero = {"prefix_weight": 0, "queue_weight": 0, "kv_weight": 0}
    for wrong in ({"kv_weight": -1}, zero):
        with pytest.raises(InputError, match="weights must not be negative"):
            compose.load("scorer", PluginRef(type=NAME, **wrong))  # type: ignore[arg-type]


def test_conformance() -> None:
    check_scorer(LlmDDefault())


ROW = st.tuples(st.booleans(), st.integers(0, 20), st.floats(0, 1.2), st.integers(0, 1500))


def reference(rows: list[tuple[bool, int, float, int]], tokens: int) -> set[int]:
    up = [n for n, row in enumerate(rows) if row[0]]
    if not up:
        return set()
    shortest, longest = min(rows[n][1] for n in up), max(rows[n][1] for n in up)
    totals = {}
    for n in up:
        _, waiting, usage, cached = rows[n]
        place = 1.0 if shortest == longest else (longest - waiting) / (longest - shortest)
        prefix = min(cached / tokens, 1.0) if tokens else 0.0
        totals[n] = 3 * prefix + 2 * place + 2 * (1 - min(usage, 1.0))
    return {n for n in up if totals[n] >= max(totals.values()) - 1e-9}


@given(st.lists(ROW, min_size=1, max_size=6), st.integers(1, 3000))
def test_it_is_the_plain_loop(rows: list[tuple[bool, int, float, int]], tokens: int) -> None:
    check(rows, tokens)


@settings(max_examples=8, deadline=None)
@given(SEEDS.map(Random), st.integers(1, 3000))
def test_it_is_the_plain_loop_over_a_thousand(draws: Random, tokens: int) -> None:
    check(
        [
            (
                draws.random() < 0.9,
                draws.randint(0, 20),
                draws.random() * 1.2,
                draws.randint(0, 1500),
            )
            for _ in range(THOUSAND)
        ],
        tokens,
    )


def check(rows: list[tuple[bool, int, float, int]], tokens: int) -> None:
    down = [n for n, row in enumerate(rows) if not row[0]]
    columns = {"waiting": [r[1] for r in rows], "kv_usage": [r[2] for r in rows]}
    made = fleet_of(len(rows), down, **columns)
    found = chosen(NAME, made, prompt(float(tokens)), [float(r[3]) for r in rows])
    assert found == reference(rows, tokens)
