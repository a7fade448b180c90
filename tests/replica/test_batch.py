"""The decoding batch: finishing order and memory growth, held against counting one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infctl.replica.batch import DecodeBatch, Sequence


def joined(batch: DecodeBatch, prompt: int, output: int, done: int = 1) -> Sequence:
    """A sequence that just prefilled."""
    sequence = Sequence(f"{prompt}-{output}", prompt, output, (), 0.0)
    sequence.done = done
    batch.join(sequence)
    return sequence


def test_sequences_finish_in_the_order_of_their_last_step() -> None:
    batch = DecodeBatch(16)
    late, early = joined(batch, 10, 9), joined(batch, 10, 4)
    assert batch.steps_to_finish() == 3
    batch.advance(3)
    assert list(batch.finished()) == [early]
    batch.leave(early)
    assert (early.done, batch.size) == (4, 1)
    assert batch.steps_to_finish() == 5
    batch.advance(5)
    assert list(batch.finished()) == [late]


def test_who_left_no_longer_finishes() -> None:
    batch = DecodeBatch(16)
    gone, other = joined(batch, 10, 3), joined(batch, 10, 8)
    batch.leave(gone)
    assert batch.steps_to_finish() == 7
    batch.advance(7)
    assert list(batch.finished()) == [other]


def test_context_counts_prompt_and_output() -> None:
    batch = DecodeBatch(16)
    one = joined(batch, 100, 50)
    batch.advance(3)
    joined(batch, 10, 50)
    assert batch.context == 104 + 11
    batch.leave(one)
    assert (batch.context, one.slots) == (11, 103)


def test_a_block_is_taken_when_the_last_one_is_full() -> None:
    batch = DecodeBatch(4)
    joined(batch, 6, 100)  # 6 of 8 slots used: two more steps fit
    assert [batch.growth(n) for n in range(8)] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert batch.steps_within(10, 0) == 2
    assert batch.steps_within(10, 1) == 6
    assert batch.steps_within(6, 1) == 6


@given(
    block_size=st.integers(1, 9),
    members=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=8),
    steps=st.integers(0, 40),
    blocks=st.integers(0, 30),
)
def test_growth_is_what_counting_gives(
    block_size: int, members: list[tuple[int, int]], steps: int, blocks: int
) -> None:
    batch = DecodeBatch(block_size)
    sequences = []
    for prompt, wait in members:
        batch.advance(wait)
        sequences.append(joined(batch, prompt, 1000))

    def needed(count: int) -> int:
        slots = [s.known - 1 + batch.steps + s.offset - s.done for s in sequences]
        return sum(-(-(n + count) // block_size) - -(-n // block_size) for n in slots)

    assert batch.growth(steps) == needed(steps)
    fitting = max(n for n in range(steps + 1) if needed(n) <= blocks)
    assert batch.steps_within(steps, blocks) == fitting
