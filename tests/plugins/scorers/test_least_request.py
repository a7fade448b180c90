"""Fewest open requests, decided by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.testing import check_scorer
from infctl_plugins.scorers.least_request import LeastRequest

from .decisions import chosen, fleet_of, prompt

NAME = "least-request"

DECISIONS = [
    ("the fewest", [3, 1, 2], [], {1}),
    ("equals are drawn among", [1, 0, 0], [], {1, 2}),
    ("whatever is cached", [3, 1, 2], [1000, 0, 0], {1}),
    ("one of a thousand", [1000, 999], [], {1}),
    ("all equal", [7, 7, 7], [], {0, 1, 2}),
    ("one endpoint", [9], [], {0}),
]


@pytest.mark.parametrize(("why", "loads", "cached", "expected"), DECISIONS)
def test_decisions(why: str, loads: list[float], cached: list[float], expected: set[int]) -> None:
    made = fleet_of(len(loads), inflight=loads)
    assert chosen(NAME, made, prompt(), cached) == expected, why


def test_only_ready_endpoints_are_chosen() -> None:
    assert chosen(NAME, fleet_of(3, down=[0], inflight=[0, 2, 1]), prompt()) == {2}
    assert chosen(NAME, fleet_of(2, down=[0, 1]), prompt(0.0)) == set()


def test_conformance() -> None:
    check_scorer(LeastRequest())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=6))
def test_it_is_the_plain_loop(rows: list[tuple[bool, int]]) -> None:
    up = [(load, n) for n, (ready, load) in enumerate(rows) if ready]
    made = fleet_of(
        len(rows), [n for n, row in enumerate(rows) if not row[0]], inflight=[r[1] for r in rows]
    )
    expected = {n for load, n in up if load == min(up)[0]}
    assert chosen(NAME, made, prompt()) == expected
