"""SGLang's rule, decided by hand. Prompts have 1,000 tokens."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl import compose
from infctl.errors import InputError
from infctl.profile.model import PluginRef
from infctl.testing import check_scorer
from infctl_plugins.scorers.sglang_cache_aware import SglangCacheAware

from .decisions import SEEDS, THOUSAND, chosen, fleet_of, prompt

NAME = "sglang-cache-aware"

DECISIONS = [
    # even: 70 − 10 is not above 64
    ("the longest prefix", [70, 10, 40], [900, 0, 500], {0}),
    ("the longest of two above the threshold", [5, 0, 9], [400, 0, 700], {2}),
    ("equal prefixes are drawn among", [9, 0, 3], [500, 0, 500], {0, 2}),
    ("exactly the threshold is not enough: least load", [9, 2, 5], [300, 0, 0], {1}),
    ("a token more is", [9, 2, 5], [301, 0, 0], {0}),
    ("more than the prompt is all of it", [9, 2, 5], [1200, 1000, 0], {0, 1}),
    # the absolute threshold: more than 64 apart
    ("64 apart is even", [64, 0, 0], [900, 0, 0], {0}),
    ("65 apart is not", [65, 0, 0], [900, 0, 0], {1, 2}),
    ("uneven, the least loaded takes it even without a prefix", [80, 3, 2], [900, 800, 0], {2}),
    # the relative threshold: 200 > 1.5 × 130 = 195, but 200 is not above 1.5 × 134 = 201
    ("uneven by both", [200, 130, 140], [900, 0, 0], {1}),
    ("apart, but not by half as much again", [200, 134, 140], [900, 0, 0], {0}),
    ("exactly half as much again is even", [210, 140, 150], [900, 0, 0], {0}),
    # edges
    ("all equal", [3, 3, 3], [0, 0, 0], {0, 1, 2}),
    ("nothing cached", [3, 1, 2], [0, 0, 0], {1}),
    ("nothing cached, two idle", [3, 0, 0], [0, 0, 0], {1, 2}),
    ("one endpoint", [90], [0], {0}),
]


@pytest.mark.parametrize(("why", "loads", "cached", "expected"), DECISIONS)
def test_decisions(why: str, loads: list[float], cached: list[float], expected: set[int]) -> None:
    made = fleet_of(len(loads), inflight=loads)
    assert chosen(NAME, made, prompt(), cached) == expected, why


def test_only_ready_endpoints_count() -> None:
    busy = fleet_of(3, down=[0], inflight=[100, 4, 2])
    assert chosen(NAME, busy, prompt(), [0, 600, 0]) == {1}  # 100 is not there to be uneven with
    holder = fleet_of(3, down=[0], inflight=[0, 4, 2])
    assert chosen(NAME, holder, prompt(), [900, 0, 0]) == {2}  # nor is its prefix of use
    assert chosen(NAME, fleet_of(2, down=[0, 1]), prompt()) == set()


def test_other_models_are_not_there_to_be_uneven_with() -> None:
    made = fleet_of(3, others=[0], inflight=[0, 90, 80])
    assert chosen(NAME, made, prompt(), [0, 600, 0]) == {1}
    made = fleet_of(3, others=[0], inflight=[90, 90, 10])
    assert chosen(NAME, made, prompt(), [0, 600, 0]) == {2}


def test_after_the_holder_failed_it_is_the_next_holder_or_the_least_load() -> None:
    made = fleet_of(3, inflight=[5, 4, 3])
    assert chosen(NAME, made, prompt(), [900, 400, 200], tried=[0]) == {1}
    assert chosen(NAME, made, prompt(), [900, 200, 0], tried=[0]) == {2}


def test_an_empty_prompt_goes_to_the_least_loaded() -> None:
    assert chosen(NAME, fleet_of(3, inflight=[2, 1, 3]), prompt(0.0)) == {1}


def test_parameters() -> None:
    made = fleet_of(2, inflight=[4, 1])
    assert chosen(NAME, made, prompt(), [200, 0], cache_threshold=0.1) == {0}
    assert chosen(NAME, made, prompt(), [900, 0], balance_abs_threshold=2) == {1}
    even = {"balance_abs_threshold": 2, "balance_rel_threshold": 4}
    assert chosen(NAME, made, prompt(), [900, 0], **even) == {0}
    for wrong in (
        {"cache_threshold": 1.1},
        {"balance_abs_threshold": -1},
        {"balance_rel_threshold": 0.9},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            compose.load("scorer", PluginRef(type=NAME, **wrong))  # type: ignore[arg-type]


def test_conformance() -> None:
    check_scorer(SglangCacheAware())


ROW = st.tuples(st.booleans(), st.integers(0, 200), st.integers(0, 1200))


def reference(rows: list[tuple[bool, int, int]], tokens: int) -> set[int]:
    up = [n for n, (ready, _, _) in enumerate(rows) if ready]
    if not up:
        return set()
    loads = [rows[n][1] for n in up]
    uneven = max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)
    shares = {n: min(rows[n][2] / tokens, 1.0) if tokens else 0.0 for n in up}
    longest = max(shares.values())
    if not uneven and longest > 0.3:
        return {n for n in up if shares[n] == longest}
    return {n for n in up if rows[n][1] == min(loads)}


@given(st.lists(ROW, min_size=1, max_size=6), st.integers(0, 3000))
def test_it_is_the_plain_loop(rows: list[tuple[bool, int, int]], tokens: int) -> None:
    check(rows, tokens)


@settings(max_examples=8, deadline=None)
@given(SEEDS.map(Random), st.sampled_from([40, 200]), st.integers(0, 3000))
def test_it_is_the_plain_loop_over_a_thousand(draws: Random, most: int, tokens: int) -> None:
    check(
        [
            (draws.random() < 0.9, draws.randint(0, most), draws.randint(0, 1200))
            for _ in range(THOUSAND)
        ],
        tokens,
    )


def check(rows: list[tuple[bool, int, int]], tokens: int) -> None:
    down = [n for n, row in enumerate(rows) if not row[0]]
    made = fleet_of(len(rows), down, inflight=[row[1] for row in rows])
    found = chosen(NAME, made, prompt(float(tokens)), [float(row[2]) for row in rows])
    assert found == reference(rows, tokens)
