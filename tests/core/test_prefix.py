"""The prefix index: graded blocks, contiguous matches, hard bounds."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.core.prefix import BLOCK_ENDS, PrefixIndex, block_count, block_hashes, prefix_seed

SEED = prefix_seed("m")


def text(n: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(n)


def index_of(slots: int, bytes_max: float = 1e9) -> PrefixIndex:
    index = PrefixIndex()
    for slot in range(slots):
        index.set_capacity(slot, bytes_max)
    return index


def test_blocks_are_graded() -> None:
    assert BLOCK_ENDS[:9] == [256, 512, 768, 1024, 1280, 1536, 1792, 2048, 3072]
    assert BLOCK_ENDS[21:23] == [16384, 20480]
    assert len(block_hashes(text(100_000), SEED)) == 42
    assert [block_count(n) for n in (0, 255, 256, 2047, 2048, 3071, 3072)] == [0, 0, 1, 7, 8, 8, 9]


@given(st.integers(0, 50_000))
def test_block_count_agrees_with_the_layout(length: int) -> None:
    assert block_count(length) == sum(end <= length for end in BLOCK_ENDS)


def test_a_prefix_has_a_prefix_of_the_hashes() -> None:
    whole = text(50_000)
    assert block_hashes(whole[:20_480], SEED) == block_hashes(whole, SEED)[:23]
    assert block_hashes(whole, SEED)[0] != block_hashes(whole, prefix_seed("other"))[0]


def test_seeds_keep_parts_apart() -> None:
    assert prefix_seed("ab", "c") != prefix_seed("a", "bc") != prefix_seed("a", "b", "c")


def test_a_late_difference_matches_up_to_it() -> None:
    index = index_of(2)
    base = text(20_000)
    index.insert(0, block_hashes(base, SEED))
    index.insert(1, block_hashes(base[:1500] + text(18_500, 9), SEED))
    matched = index.match(block_hashes(base, SEED), 2)
    assert matched.tolist() == [16384.0, 1280.0]


def test_only_contiguous_matches_count() -> None:
    index = index_of(1)
    blocks = block_hashes(text(4096), SEED)
    index.insert(0, blocks[1:])
    assert index.match(blocks, 1).tolist() == [0.0]


def test_many_holders_take_the_vector_path_to_the_same_answer() -> None:
    blocks = block_hashes(text(4096), SEED)
    index = index_of(300)
    for slot in range(300):
        index.insert(slot, blocks[: 1 + slot % len(blocks)])
    expected = [float(BLOCK_ENDS[slot % len(blocks)]) for slot in range(300)]
    assert index.match(blocks, 300).tolist() == expected


def test_the_least_recently_used_prefix_goes_first_and_its_tail_before_its_head() -> None:
    index = index_of(1, bytes_max=4096)
    old, new, newest = (block_hashes(text(2048, s), SEED) for s in (1, 2, 3))
    index.insert(0, old)
    index.insert(0, new)
    index.insert(0, old)
    index.insert(0, newest[:4])
    assert index.match(old, 1)[0] == 2048.0
    assert index.match(new, 1)[0] == 1024.0
    assert index.match(newest, 1)[0] == 1024.0


def test_a_failed_request_takes_back_what_it_alone_brought() -> None:
    index = index_of(1)
    shared = text(2048)
    index.insert(0, block_hashes(shared, SEED))
    added = index.insert(0, block_hashes(shared + text(4096, 5), SEED))
    index.forget(0, added)
    assert index.held_bytes(0) == 2048
    assert index.match(block_hashes(shared, SEED), 1)[0] == 2048.0


def test_a_slot_that_left_is_forgotten() -> None:
    index = index_of(2)
    blocks = block_hashes(text(4096), SEED)
    index.insert(0, blocks)
    index.insert(1, blocks)
    index.remove(0)
    assert index.match(blocks, 2).tolist() == [0.0, 4096.0]
    assert (index.held_bytes(0), len(index)) == (0, len(blocks))


def test_unique_prompts_stay_under_the_cap() -> None:
    index = PrefixIndex(blocks_max=500)
    index.set_capacity(0, 1e9)
    index.set_capacity(1, 1e9)
    for number in range(200):
        index.insert(number % 2, block_hashes(text(4096, number), SEED))
    assert len(index) <= 500
    assert index.evicted_total >= 200 * 10 - 500


def test_an_endpoint_that_fails_every_request_fills_no_memory() -> None:
    index = index_of(1)
    kept = block_hashes(text(4096, 1), SEED)
    index.insert(0, kept)
    for number in range(2000):
        index.forget(0, index.insert(0, block_hashes(text(2048, 2 + number % 3), SEED)))
    assert len(index._rings[0].order) <= 2 * len(kept) + 1024 + 8
    assert index.match(kept, 1)[0] == 4096.0
    assert len(index) == len(kept)


def test_nothing_is_kept_about_a_block_that_nobody_holds() -> None:
    index = index_of(2)
    block = block_hashes(text(256), SEED)
    index.insert(0, block)
    index.insert(0, block)
    index.insert(1, block)
    index.remove(0)
    index.set_capacity(1, 0)
    assert (index._holders, index._touched) == ({}, {})


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "forget", "remove", "capacity"]),
            st.integers(0, 2),
            st.integers(0, 5),
            st.integers(0, 12_000),
        ),
        max_size=60,
    )
)
def test_bookkeeping_never_drifts(steps: list[tuple[str, int, int, int]]) -> None:
    index = index_of(3, bytes_max=8192)
    for step, slot, prompt, length in steps:
        blocks = block_hashes(text(12_000, prompt)[:length], SEED)
        if step == "insert":
            index.insert(slot, blocks)
        elif step == "forget":
            index.forget(slot, blocks)
        elif step == "remove":
            index.remove(slot)
        else:
            index.set_capacity(slot, length)
        held = [index.held_bytes(s) for s in range(3)]
        assert min(held) >= 0
        bits = sum(mask.bit_count() for mask in index._holders.values())
        assert len(index) == bits == sum(ring.blocks_held for ring in index._rings.values())
        assert sum(held) == sum(
            (256, 1024, 4096)[block & 3] * mask.bit_count()
            for block, mask in index._holders.items()
        )
        for block, mask in index._touched.items():
            assert mask
            assert index._holders[block] & mask == mask
