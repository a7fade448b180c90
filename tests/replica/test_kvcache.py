"""KV memory: prefix reuse, eviction order, and the known answers of the public trace."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.replica.kvcache import BlocksRemoved, BlocksStored, CacheCleared, KvCache

DATA = Path(os.environ.get("INFCTL_DATA", Path(__file__).parents[2] / "../shared/data"))
TRACE = DATA / "mooncake_conversation.jsonl"


def run_once(cache: KvCache, name: str, hashes: list[int], blocks: int | None = None) -> int:
    """Hold a request's blocks and give them back; how many were hit."""
    total = len(hashes) if blocks is None else blocks
    hits = cache.match(hashes, len(hashes))
    assert cache.acquire(name, hashes, hits, total)
    cache.release(name, hashes, len(hashes), total, len(hashes))
    return hits


def test_a_prefix_is_hit_up_to_the_first_difference() -> None:
    cache = KvCache(10)
    run_once(cache, "a", [1, 2, 3])
    assert run_once(cache, "b", [1, 2, 9]) == 2
    assert run_once(cache, "c", [7, 2, 3]) == 0


def test_the_limit_bounds_a_match() -> None:
    cache = KvCache(10)
    run_once(cache, "a", [1, 2, 3])
    assert cache.match([1, 2, 3], 2) == 2


def test_shared_blocks_are_held_once() -> None:
    cache = KvCache(10)
    assert cache.acquire("a", [1, 2], 0, 3)
    assert cache.acquire("b", [1, 2], 2, 3)
    assert (cache.held, cache.available) == (4, 6)
    cache.release("a", [1, 2], 2, 3, 2)
    assert cache.held == 3
    cache.release("b", [1, 2], 2, 3, 2)
    assert (cache.held, cache.reusable) == (0, 2)


def test_the_tail_of_the_least_recently_used_goes_first() -> None:
    cache = KvCache(5)
    run_once(cache, "a", [1, 2, 3])
    run_once(cache, "b", [11, 12])
    run_once(cache, "c", [21, 22])
    assert [cache.match([h], 1) for h in (1, 2, 3, 11, 12)] == [1, 0, 0, 1, 1]


def test_a_hit_makes_blocks_recent() -> None:
    cache = KvCache(4)
    run_once(cache, "a", [1, 2])
    run_once(cache, "b", [11, 12])
    run_once(cache, "a", [1, 2])
    run_once(cache, "c", [21])
    assert cache.match([1, 2], 2) == 2
    assert cache.match([11, 12], 2) == 1


def test_what_does_not_fit_changes_nothing() -> None:
    cache = KvCache(4)
    assert cache.acquire("a", [1, 2], 0, 3)
    assert not cache.acquire("b", [1, 2, 3], 2, 4)
    assert (cache.held, cache.available) == (3, 1)
    assert not cache.acquire("c", [8], 0, 1, reserved=1)


def test_evictable_blocks_that_are_hit_do_not_count_as_room() -> None:
    cache = KvCache(3)
    run_once(cache, "a", [1, 2, 3])
    assert not cache.acquire("b", [1, 2, 3], 3, 4)
    assert cache.acquire("b", [1, 2, 3], 3, 3)


def test_only_computed_blocks_stay() -> None:
    cache = KvCache(8)
    assert cache.acquire("a", [1, 2, 3], 0, 4)
    cache.release("a", [1, 2, 3], 3, 4, 1)
    assert cache.match([1, 2, 3], 3) == 1


def test_blocks_filled_by_generation_become_reusable() -> None:
    cache = KvCache(8)
    hashes = [1, 2, 3, 4]
    assert cache.acquire("a", hashes[:2], 0, 3)
    cache.grow(1)
    cache.release("a", hashes, 2, 4, 3)
    assert cache.match(hashes, 4) == 3
    assert cache.held == 0


def test_clear_forgets_what_nobody_holds() -> None:
    cache = KvCache(8)
    run_once(cache, "a", [1, 2])
    assert cache.acquire("b", [1], 1, 1)
    cache.clear()
    assert cache.match([1, 2], 2) == 1


def test_events_tell_what_came_and_went() -> None:
    cache = KvCache(3, record=True)
    run_once(cache, "a", [1, 2])
    run_once(cache, "b", [1, 5, 6])
    cache.clear()
    assert cache.take_events() == [
        BlocksStored("a", 0, (1, 2), None),
        BlocksRemoved((2,)),
        BlocksStored("b", 1, (5, 6), 1),
        CacheCleared(),
    ]
    assert cache.take_events() == []


def test_no_events_without_record() -> None:
    cache = KvCache(3)
    run_once(cache, "a", [1, 2])
    cache.clear()
    assert cache.take_events() == []


def test_a_cache_has_blocks() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        KvCache(0)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(0, 3), st.integers(0, 9)),
        max_size=60,
    )
)
def test_blocks_never_exceed_capacity(requests: list[tuple[int, int, int, int]]) -> None:
    cache = KvCache(12)
    running: deque[tuple[list[int], int, int]] = deque()
    for family, length, extra, computed in requests:
        hashes = [family * 100 + i for i in range(length)]
        if cache.acquire("r", hashes, cache.match(hashes, length), length + extra):
            running.append((hashes, length + extra, min(computed, length)))
        elif running:
            kept, blocks, done = running.popleft()
            cache.release("r", kept, len(kept), blocks, done)
        assert 0 <= cache.held <= 12
        assert cache.reusable <= cache.available
    for kept, blocks, done in running:
        cache.release("r", kept, len(kept), blocks, done)
    assert cache.held == 0


@pytest.mark.skipif(not TRACE.exists(), reason=f"no trace at {TRACE}")
@pytest.mark.parametrize(("workers", "limit", "percent"), [(8, 3000, 8.5), (4, 3000, 9.9)])
def test_round_robin_hit_rate_of_the_public_trace(workers: int, limit: int, percent: float) -> None:
    caches = [KvCache(3000) for _ in range(workers)]
    hits = blocks = 0
    with TRACE.open() as lines:
        for index, line in zip(range(limit), lines, strict=False):
            hashes = json.loads(line)["hash_ids"]
            hits += run_once(caches[index % workers], str(index), hashes)
            blocks += len(hashes)
    assert 100 * hits / blocks == pytest.approx(percent, abs=0.15)
