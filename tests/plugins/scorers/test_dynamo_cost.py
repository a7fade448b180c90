"""Dynamo's cost, decided by hand in blocks of 16 tokens. Prompts have 10 blocks."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl import compose
from infctl.errors import InputError
from infctl.profile.model import PluginRef
from infctl.testing import check_scorer
from infctl_plugins.scorers.dynamo_cost import DynamoCost

from .decisions import SEEDS, THOUSAND, chosen, fleet_of, prompt

NAME = "dynamo-cost"
BLOCK = 16.0

# in blocks: prefill under way, prompts in flight, cached of this prompt
DECISIONS = [
    # 8 + (10 + 10) = 28, 5 + (5 + 10) = 20, 2 + (9 + 10) = 21: the documentation's three workers
    ("neither the most cached nor the least", [0, 0, 0], [10, 5, 9], [2, 5, 8], {1}),
    # 10 + 10 against 0 + (9 + 10)
    ("a whole prompt cached is worth its blocks", [0, 0], [0, 9], [0, 10], {1}),
    ("but no more than that", [0, 0], [0, 11], [0, 10], {0}),
    ("and as much is as good", [0, 0], [0, 10], [0, 10], {0, 1}),
    # (6 + 10) + (6 + 10) against 10 + (11 + 10): prefill under way counts twice until it ends
    ("prefill under way counts on both sides", [6, 0], [6, 11], [0, 0], {1}),
    ("afterwards once", [0, 0], [6, 11], [0, 0], {0}),
    # 4 + 10 against (20 + 0) + 10: what is cached here does not shorten others' prefill
    ("others' prefill is waited for", [0, 20], [0, 0], [6, 10], {0}),
    ("more than the prompt is all of it", [0, 0], [0, 0], [12, 10], {0, 1}),
    ("all equal", [3, 3, 3], [5, 5, 5], [1, 1, 1], {0, 1, 2}),
    ("nothing cached: the least load", [0, 0, 0], [5, 2, 7], [0, 0, 0], {1}),
    ("one endpoint", [100], [900], [0], {0}),
]


@pytest.mark.parametrize(("why", "pending", "inflight", "cached", "expected"), DECISIONS)
def test_decisions(
    why: str,
    pending: list[float],
    inflight: list[float],
    cached: list[float],
    expected: set[int],
) -> None:
    made = fleet_of(
        len(pending),
        pending_tokens=[n * BLOCK for n in pending],
        inflight_tokens=[n * BLOCK for n in inflight],
    )
    found = chosen(NAME, made, prompt(10 * BLOCK), [n * BLOCK for n in cached])
    assert found == expected, why


def test_costs_are_blocks() -> None:
    made = fleet_of(3, inflight_tokens=[160, 80, 144])
    cached = [2 * BLOCK, 5 * BLOCK, 8 * BLOCK]
    scores = DynamoCost().score(prompt(160.0), made, np.array(cached))
    assert scores.tolist() == [-28.0, -20.0, -21.0]


def test_only_ready_endpoints_are_chosen() -> None:
    made = fleet_of(3, down=[0], inflight_tokens=[0, 160, 320])
    assert chosen(NAME, made, prompt(160.0), [160, 0, 0]) == {1}
    assert chosen(NAME, fleet_of(2, down=[0, 1]), prompt()) == set()


def test_an_empty_prompt_goes_to_the_least_load() -> None:
    made = fleet_of(3, inflight_tokens=[32, 16, 48], pending_tokens=[0, 32, 0])
    assert chosen(NAME, made, prompt(0.0)) == {0}


def test_the_weight_trades_cache_for_load() -> None:
    made = fleet_of(2, inflight_tokens=[0, 12 * BLOCK])  # 10·w + 10 against 0·w + 22
    cached = [0, 10 * BLOCK]
    assert chosen(NAME, made, prompt(10 * BLOCK), cached, overlap_weight=1.1) == {0}
    assert chosen(NAME, made, prompt(10 * BLOCK), cached, overlap_weight=1.3) == {1}
    none = fleet_of(2, inflight_tokens=[16, 0], pending_tokens=[0, 160])
    assert chosen(NAME, none, prompt(10 * BLOCK), [160, 0], overlap_weight=0) == {1}
    with pytest.raises(InputError, match="overlap_weight must not be negative"):
        compose.load("scorer", PluginRef(type=NAME, overlap_weight=-1))  # type: ignore[call-arg]


def test_conformance() -> None:
    check_scorer(DynamoCost())


ROW = st.tuples(st.booleans(), st.integers(0, 5000), st.integers(0, 9000), st.integers(0, 1500))


def reference(rows: list[tuple[bool, int, int, int]], tokens: int, weight: float) -> set[int]:
    costs = {}
    for n, (ready, pending, inflight, cached) in enumerate(rows):
        if ready:
            prefill = (pending + max(tokens - cached, 0)) / BLOCK
            costs[n] = weight * prefill + (inflight + tokens) / BLOCK
    return {n for n, cost in costs.items() if cost <= min(costs.values()) + 1e-9 * (1 + cost)}


@given(st.lists(ROW, min_size=1, max_size=6), st.integers(0, 3000), st.sampled_from([0, 0.5, 1, 3]))
def test_it_is_the_plain_loop(
    rows: list[tuple[bool, int, int, int]], tokens: int, weight: float
) -> None:
    check(rows, tokens, weight)


@settings(max_examples=8, deadline=None)
@given(SEEDS.map(Random), st.integers(0, 3000), st.sampled_from([0, 0.5, 1, 3]))
def test_it_is_the_plain_loop_over_a_thousand(draws: Random, tokens: int, weight: float) -> None:
    check(
        [
            (
                draws.random() < 0.9,
                draws.randint(0, 5000),
                draws.randint(0, 9000),
                draws.randint(0, 1500),
            )
            for _ in range(THOUSAND)
        ],
        tokens,
        weight,
    )


def check(rows: list[tuple[bool, int, int, int]], tokens: int, weight: float) -> None:
    down = [n for n, row in enumerate(rows) if not row[0]]
    columns = {"pending_tokens": [r[1] for r in rows], "inflight_tokens": [r[2] for r in rows]}
    made = fleet_of(len(rows), down, **columns)
    cached = [float(r[3]) for r in rows]
    found = chosen(NAME, made, prompt(float(tokens)), cached, overlap_weight=weight)
    assert found == reference(rows, tokens, weight)
