"""Tables that each worker writes alone and the others read."""

from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from infctl.router.board import WORD, Board, clear, words_of

COLUMNS, SLOTS = 2, 16
STARTS = [number * words_of(COLUMNS, SLOTS) for number in range(3)]


def boards() -> tuple[mmap.mmap, list[Board]]:
    memory = mmap.mmap(-1, 3 * words_of(COLUMNS, SLOTS) * WORD)
    return memory, [Board(memory, STARTS, COLUMNS, SLOTS, number) for number in range(3)]


NAMES = st.lists(st.integers(0, 6), max_size=6).map(
    lambda names: [n * (n not in names[:i]) for i, n in enumerate(names)]
)


@given(st.lists(st.tuples(st.integers(0, 2), NAMES), max_size=8))
def test_the_sum_goes_by_who_it_is(changes: list[tuple[int, list[int]]]) -> None:
    _, found = boards()
    now: list[list[int]] = [[], [], []]
    for who, names in changes:
        found[who].own[:] = 0.0
        for slot, name in enumerate(names):
            found[who].own[:, slot] = (name * 10.0 + who, 1.0 if name else 0.0)
        found[who].identify(names)
        now[who] = names
    for who, board in enumerate(found):
        total = board.sum()
        assert total.shape == (COLUMNS, len(now[who]))
        for slot, name in enumerate(now[who]):
            others = [n for n in range(3) if n != who and name and name in now[n]]
            assert total[:, slot].tolist() == [sum(name * 10.0 + n for n in others), len(others)]


def test_a_dead_workers_table_reads_as_nothing() -> None:
    memory, (one, other, _) = boards()
    one.identify([5])
    one.own[:, 0] = 3.0
    other.identify([9, 5])
    assert other.sum().tolist() == [[0.0, 3.0], [0.0, 3.0]]
    clear(memory, STARTS[0], COLUMNS, SLOTS)
    assert not other.sum().any()
    again = Board(memory, STARTS, COLUMNS, SLOTS, 0)
    again.identify([7, 5])
    again.own[:, 1] = 1.0
    assert other.sum().tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_a_worker_that_ended_while_it_changed_its_identities_is_left_alone() -> None:
    memory, (one, other, _) = boards()
    one.identify([5])
    other.identify([5])
    one.own[:, 0] = 2.0
    one._header[0] += 1  # killed in the middle
    assert not other.sum().any()
    clear(memory, STARTS[0], COLUMNS, SLOTS)
    Board(memory, STARTS, COLUMNS, SLOTS, 0).identify([5])
    assert not other.sum().any()
