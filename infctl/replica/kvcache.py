"""Paged KV memory of one engine: blocks, reference counts, prefix reuse, LRU eviction.

Blocks are counted, not numbered. A block is *held* (referenced by running sequences, with or
without a hash), *free* (unreferenced but still holding a known prefix, evictable in least
recently used order) or empty. A hash stands for a run of `weight` blocks and everything before it,
so equal hashes are the same blocks, shared.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlocksStored(msgspec.Struct, frozen=True, gc=False):
    """Blocks `first` … of a request became reusable; `parent` is the hash before them."""

    request_id: str
    first: int
    hashes: tuple[int, ...]
    parent: int | None


class BlocksRemoved(msgspec.Struct, frozen=True, gc=False):
    """Blocks were evicted and can no longer be hit."""

    hashes: tuple[int, ...]


class CacheCleared(msgspec.Struct, frozen=True, gc=False):
    """Every unreferenced block was dropped at once."""


CacheEvent = BlocksStored | BlocksRemoved | CacheCleared


class KvCache:
    """`capacity` blocks. A hash stands for `weight` of them: for one, as engines have it, or for
    more where a simulation need not look that closely. With `record`, changes are kept in `events`
    until they are taken."""

    def __init__(self, capacity: int, *, weight: int = 1, record: bool = False) -> None:
        if capacity < 1 or weight < 1:
            raise ValueError(f"a KV cache needs at least one block, not {capacity} or {weight}")
        self.capacity = capacity
        self.weight = weight
        self.record = record
        self.events: list[CacheEvent] = []
        self._references: dict[int, int] = {}
        self._free: dict[int, None] = {}
        self._unhashed = 0

    @property
    def held(self) -> int:
        """Blocks that running sequences reference."""
        return len(self._references) * self.weight + self._unhashed

    @property
    def reusable(self) -> int:
        """Unreferenced blocks that still hold a prefix."""
        return len(self._free) * self.weight

    @property
    def available(self) -> int:
        """Blocks that can be allocated, evicting free ones where needed."""
        return self.capacity - len(self._references) * self.weight - self._unhashed

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """How many leading hashes, at most `limit`, are here."""
        references, free = self._references, self._free
        count = 0
        for value in hashes[:limit]:
            if value not in references and value not in free:
                break
            count += 1
        return count

    def acquire(
        self,
        request_id: str,
        hashes: Sequence[int],
        matched: int,
        blocks: int,
        reserved: int = 0,
    ) -> bool:
        """Hold `blocks` blocks, the first of them by `hashes`, of which `matched` are here already.

        False, with nothing changed, when that would leave fewer than `reserved` available.
        """
        references, free, weight = self._references, self._free, self.weight
        revived = sum(1 for value in hashes[:matched] if value in free)
        if blocks - (matched - revived) * weight + reserved > self.available:
            return False
        for value in hashes:
            count = references.get(value, 0)
            references[value] = count + 1
            if not count:
                free.pop(value, None)
        self._unhashed += blocks - len(hashes) * weight
        self._evict()
        if self.record and matched < len(hashes):
            self._stored(request_id, hashes, matched)
        return True

    def grow(self, blocks: int) -> None:
        """Hold `blocks` more blocks without a hash; the caller has checked `available`."""
        self._unhashed += blocks
        self._evict()

    def release(
        self, request_id: str, hashes: Sequence[int], held: int, blocks: int, computed: int
    ) -> None:
        """Give back `blocks` blocks, the first of them by the `held` hashes that were acquired.

        The first `computed` hashes hold finished KV and stay reusable, the last block the first
        to be evicted; `computed` may exceed `held` when generation filled more blocks.
        """
        self._unhashed -= blocks - held * self.weight
        references, free = self._references, self._free
        for index in range(max(held, computed) - 1, -1, -1):
            value = hashes[index]
            count = references.get(value, 0)
            if index >= held:
                if count:
                    continue
            elif count > 1:
                references[value] = count - 1
                continue
            else:
                del references[value]
            if index < computed:
                free.pop(value, None)
                free[value] = None
            elif self.record:
                self.events.append(BlocksRemoved((value,)))
        self._evict()
        if self.record and computed > held:
            self._stored(request_id, hashes[:computed], held)

    def clear(self) -> None:
        """Forget every unreferenced block (an engine's prefix cache reset)."""
        self._free.clear()
        if self.record:
            self.events.append(CacheCleared())

    def take_events(self) -> list[CacheEvent]:
        """Changes since the last call, oldest first."""
        events, self.events = self.events, []
        return events

    def _evict(self) -> None:
        free, weight = self._free, self.weight
        surplus = len(free) * weight - self.available
        if surplus <= 0:
            return
        evicted = list(islice(free, -(-surplus // weight)))
        for value in evicted:
            del free[value]
        if self.record:
            self.events.append(BlocksRemoved(tuple(evicted)))

    def _stored(self, request_id: str, hashes: Sequence[int], first: int) -> None:
        parent = hashes[first - 1] if first else None
        self.events.append(BlocksStored(request_id, first, tuple(hashes[first:]), parent))
