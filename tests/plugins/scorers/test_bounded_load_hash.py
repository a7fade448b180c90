"""Consistent hashing with bounded loads: who is in a key's order is drawn by hashes, so decisions
are written by place in that order (0 is the key's home)."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from infctl import compose
from infctl.core.fleet import State
from infctl.errors import InputError
from infctl.plugin import Endpoint, Fleet
from infctl.profile.model import PluginRef
from infctl.testing import check_scorer
from infctl_plugins.scorers.bounded_load_hash import BoundedLoadHash

from .decisions import SEEDS, THOUSAND, chosen, fleet_of, prompt

NAME = "bounded-load-hash"
KEY = 0xC0FFEE_DECADE_40


def order_of(size: int, key: int = KEY) -> list[int]:
    """The slots of an idle fleet, best first."""
    column = BoundedLoadHash().score(prompt(blocks=[key]), fleet_of(size), np.zeros(size))
    return [int(slot) for slot in np.argsort(-column)]


# Loads by place in the key's order. The bound is 1.25 × (all open + 1) / endpoints.
DECISIONS = [
    ("idle: the home", [0, 0, 0, 0], 0),
    # 1.25 × 9 / 4 = 2.81: two open, this one the third, is over it
    ("over the bound: the next", [3, 1, 2, 2], 1),
    ("over it too: the one after", [3, 2, 1, 2], 2),
    ("not the least loaded, but the first within", [4, 1, 0, 3], 1),
    ("the last of all", [3, 3, 2, 0], 3),
    # 1.25 × 16 / 4 = 5
    ("exactly the bound is within", [4, 4, 4, 3], 0),
    ("one more is not", [5, 4, 3, 3], 1),
    # 1.25 × 9 / 4 = 2.81, and everyone would have three
    ("all over the bound: the home", [2, 2, 2, 2], 0),
    # 1.25 × 2 / 4 = 0.63: below one request each, nobody is within
    ("hardly any load: the home, busy or not", [1, 0, 0, 0], 0),
    ("one endpoint", [50], 0),
]


@pytest.mark.parametrize(("why", "loads", "place"), DECISIONS)
def test_decisions(why: str, loads: list[float], place: int) -> None:
    order = order_of(len(loads))
    inflight = [loads[order.index(slot)] for slot in range(len(loads))]
    made = fleet_of(len(loads), inflight=inflight)
    assert chosen(NAME, made, prompt(blocks=[KEY])) == {order[place]}, why


def test_only_ready_endpoints_count() -> None:
    order = order_of(4)
    away = fleet_of(4, down=order[:1])
    assert chosen(NAME, away, prompt(blocks=[KEY])) == {order[1]}
    # 1.25 × (2 + 1 + 0 + 1) / 3 = 1.67; with the one that is down it would be 1.25 × 24 / 4 = 7.5.
    loads = dict(zip(order, (20, 2, 1, 0), strict=True))
    busy = fleet_of(4, down=order[:1], inflight=[loads[slot] for slot in range(4)])
    assert chosen(NAME, busy, prompt(blocks=[KEY])) == {order[3]}
    assert chosen(NAME, fleet_of(2, down=[0, 1]), prompt(blocks=[KEY])) == set()


def test_the_mean_is_of_the_models_endpoints() -> None:
    order = order_of(4)
    # 1.25 × (2 + 2 + 3 + 1) / 3 = 3.3; with the idle one of another model it would be 2.5
    loads = dict(zip(order, (2, 2, 3, 0), strict=True))
    made = fleet_of(4, others=order[3:], inflight=[loads[slot] for slot in range(4)])
    assert chosen(NAME, made, prompt(blocks=[KEY])) == {order[0]}


def test_a_prompt_without_a_whole_block_goes_to_anyone_within_the_bound() -> None:
    assert chosen(NAME, fleet_of(3), prompt(0.0)) == {0, 1, 2}
    made = fleet_of(3, inflight=[9, 4, 5])  # 1.25 × 19 / 3 = 7.9
    assert chosen(NAME, made, prompt(20.0)) == {1, 2}


def test_keys_have_even_shares_and_only_a_leavers_keys_move() -> None:
    keys = [xxh3_64_intdigest(str(n).encode()) for n in range(2000)]

    def homes(made: Fleet) -> list[str]:
        scorer = BoundedLoadHash()
        columns = (scorer.score(prompt(blocks=[key]), made, np.zeros(len(made))) for key in keys)
        slots = (int(np.where(made.ready, column, -np.inf).argmax()) for column in columns)
        return [endpoint.id for slot in slots if (endpoint := made.slots[slot])]

    made = fleet_of(8)
    before = homes(made)
    assert all(200 <= count <= 300 for count in Counter(before).values())
    made.remove("u7")
    after = homes(made)
    assert all(new == old for new, old in zip(after, before, strict=True) if old != "u7")
    assert max(Counter(after).values()) <= 350
    # Another router found the same endpoints in another order.
    elsewhere = Fleet()
    for number in reversed(range(8)):
        slot = elsewhere.add(Endpoint(unit=f"u{number}", url="", models=("m",)))
        elsewhere.set_state(slot, State.READY)
    assert homes(elsewhere) == before


@pytest.mark.parametrize(
    ("prefix_bytes", "place"),
    [(1, 0), (100, 0), (256, 0), (257, 1), (512, 1), (2048, 7), (2049, 8), (3072, 8), (20480, 22)],
)
def test_the_key_is_the_block_that_ends_the_prefix(prefix_bytes: int, place: int) -> None:
    scorer = BoundedLoadHash(prefix_bytes=prefix_bytes)
    made, none = fleet_of(8), np.zeros(8)
    blocks = [xxh3_64_intdigest(str(n).encode()) for n in range(24)]
    column = scorer.score(prompt(blocks=blocks), made, none)
    assert (column == BoundedLoadHash().score(prompt(blocks=[blocks[place]]), made, none)).all()
    if place:  # a shorter prompt is its own key
        short = scorer.score(prompt(blocks=blocks[:place]), made, none)
        alone = BoundedLoadHash().score(prompt(blocks=[blocks[place - 1]]), made, none)
        assert (short == alone).all()


def test_parameters() -> None:
    order = order_of(2)
    made = fleet_of(2, inflight=[3 if slot == order[0] else 1 for slot in range(2)])
    # the home would have 4: 1.25 × 5 / 2 = 3.1, 1.6 × 5 / 2 = 4
    assert chosen(NAME, made, prompt(blocks=[KEY])) == {order[1]}
    assert chosen(NAME, made, prompt(blocks=[KEY]), load_factor=1.6) == {order[0]}
    for wrong in ({"load_factor": 0.9}, {"prefix_bytes": 0}, {"prefix_bytes": 1 << 30}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            compose.load("scorer", PluginRef(type=NAME, **wrong))  # type: ignore[arg-type]


def test_conformance() -> None:
    check_scorer(BoundedLoadHash())


def drawn(key: int, name: str) -> int:
    """The hash of a key and an endpoint's id, in plain integers."""
    word = key ^ xxh3_64_intdigest(name.encode())
    for _ in range(2):
        word = ((word ^ word >> 29) * 0x9E3779B97F4A7C15) % 2**64
    return word


def reference(rows: list[tuple[bool, int]], key: int) -> set[int]:
    up = [n for n, (ready, _) in enumerate(rows) if ready]
    if not up:
        return set()
    bound = 1.25 * (sum(rows[n][1] for n in up) + 1) / len(up)
    order = sorted(up, key=lambda n: drawn(key, f"u{n}"), reverse=True)
    for n in order:
        if rows[n][1] + 1 <= bound:
            return {n}
    return {order[0]}


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), min_size=1, max_size=7),
    st.integers(0, 2**64 - 1),
)
def test_it_is_the_plain_loop(rows: list[tuple[bool, int]], key: int) -> None:
    check(rows, key)


@settings(max_examples=8, deadline=None)
@given(SEEDS.map(Random), st.integers(0, 2**64 - 1))
def test_it_is_the_plain_loop_over_a_thousand(draws: Random, key: int) -> None:
    check([(draws.random() < 0.9, draws.randint(0, 12)) for _ in range(THOUSAND)], key)


def check(rows: list[tuple[bool, int]], key: int) -> None:
    down = [n for n, row in enumerate(rows) if not row[0]]
    made = fleet_of(len(rows), down, inflight=[row[1] for row in rows])
    assert chosen(NAME, made, prompt(blocks=[key])) == reference(rows, key)
