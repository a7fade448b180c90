"""The prefix index: which endpoints probably hold which prompt prefixes in their KV cache.

A prompt's raw bytes are cut into graded blocks (256 B up to 2 kB, 1 kB up to 16 kB, then 4 kB), so
that short prompts match finely and a 100 kB prompt still is 43 blocks. Each block's hash is
chained over its predecessor, so equal hashes mean equal prefixes and only contiguous matches
count. The two low bits of a hash hold its grade, hence its size.

Per hash the index keeps an integer with one bit per endpoint slot. Per endpoint a ring with
reference bits (CLOCK, an approximation of least recently used) bounds what it is believed to hold
to its real KV capacity. Blocks enter a ring deepest first, because engines evict the tail of a
prefix before its head.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from infctl.core.fleet import Column

SIZES = (256, 1024, 4096)
_GRADE_ENDS = (2048, 16384, 8 * 1024 * 1024)
_GRADE_MASK = 3
_MANY_BITS = 48
_STALE_MAX = 1024


def _layout() -> list[tuple[int, int, int]]:
    blocks, start = [], 0
    for grade, (size, end) in enumerate(zip(SIZES, _GRADE_ENDS, strict=True)):
        while start < end:
            blocks.append((start, start + size, grade))
            start += size
    return blocks


_LAYOUT = _layout()
BLOCK_ENDS = [end for _, end, _ in _LAYOUT]
"""BLOCK_ENDS[i]: bytes of prompt up to the end of block i. Prompts are hashed up to 8 MiB."""

GRADES = [grade for _, _, grade in _LAYOUT]
"""GRADES[i]: the size of block i as an index into SIZES, and its hash's two low bits."""


def block_count(length: int) -> int:
    """How many whole blocks a prompt of `length` bytes has."""
    if length < 2048:
        return length >> 8
    if length < 16384:
        return 8 + ((length - 2048) >> 10)
    return min(22 + ((length - 16384) >> 12), len(_LAYOUT))


def prefix_seed(*parts: bytes | str) -> int:
    """Where a chain starts: model, cache salt and whatever precedes the prompt in the template.

    A length goes before each part, so that no two sequences of parts run together.
    """
    seed = 0
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        seed = xxh3_64_intdigest(data, seed=(seed ^ len(data)) & 0xFFFFFFFFFFFFFFFF)
    return seed


def block_hashes(prompt: bytes | memoryview, seed: int) -> list[int]:
    """Chained hashes of the prompt's whole blocks, grade in the two low bits of each."""
    view = memoryview(prompt)
    hashes: list[int] = []
    append, digest, chain = hashes.append, xxh3_64_intdigest, seed
    for start, end, grade in _LAYOUT[: block_count(len(view))]:
        chain = (digest(view[start:end], seed=chain) & ~_GRADE_MASK) | grade
        append(chain)
    return hashes


class _Ring:
    """What one endpoint is believed to hold: hashes in insertion order, and their bytes."""

    __slots__ = ("blocks_held", "bytes_held", "bytes_max", "order")

    def __init__(self, bytes_max: float) -> None:
        self.order: deque[int] = deque()
        self.blocks_held = 0
        self.bytes_held = 0
        self.bytes_max = bytes_max


class PrefixIndex:
    """Hash → holders, bounded per endpoint by bytes and over all by `blocks_max`."""

    def __init__(self, blocks_max: int = 4_000_000) -> None:
        self.blocks_max = blocks_max
        self._holders: dict[int, int] = {}
        self._touched: dict[int, int] = {}
        self._rings: dict[int, _Ring] = {}
        self._entries = 0
        self.evicted_total = 0

    def __len__(self) -> int:
        """Blocks held, counted once per endpoint."""
        return self._entries

    def set_capacity(self, slot: int, bytes_max: float) -> None:
        """Bound what `slot` may be believed to hold, evicting what is over."""
        ring = self._rings.setdefault(slot, _Ring(bytes_max))
        ring.bytes_max = bytes_max
        self._shrink(slot, ring)

    def held_bytes(self, slot: int) -> int:
        """Bytes of prompt `slot` is believed to hold."""
        ring = self._rings.get(slot)
        return ring.bytes_held if ring else 0

    def match(self, blocks: list[int], slots: int) -> Column:
        """Bytes of contiguous prefix each of `slots` endpoints is believed to hold."""
        matched = np.zeros(slots)
        get = self._holders.get
        alive = get(blocks[0], 0) if blocks else 0
        if not alive:
            return matched
        depth = 0
        for depth, block in enumerate(blocks):
            held = get(block, 0)
            gone = alive & ~held
            if gone:
                if depth:
                    _set_bits(matched, gone, BLOCK_ENDS[depth - 1])
                alive &= held
                if not alive:
                    return matched
        _set_bits(matched, alive, BLOCK_ENDS[depth])
        return matched

    def insert(self, slot: int, blocks: list[int]) -> list[int]:
        """Believe that `slot` holds these blocks; returns those it did not hold before."""
        ring = self._rings.get(slot)
        if ring is None or not blocks:
            return []
        bit, holders, touched = 1 << slot, self._holders, self._touched
        added: list[int] = []
        for block in reversed(blocks):
            held = holders.get(block, 0)
            if held & bit:
                touched[block] = touched.get(block, 0) | bit
            else:
                holders[block] = held | bit
                ring.bytes_held += SIZES[block & _GRADE_MASK]
                added.append(block)
        ring.order.extend(added)
        ring.blocks_held += len(added)
        self._entries += len(added)
        if len(ring.order) > 2 * ring.blocks_held + _STALE_MAX:
            self._compact(bit, ring)
        self._shrink(slot, ring)
        return added

    def _compact(self, bit: int, ring: _Ring) -> None:
        """Take out of a ring what was forgotten: an endpoint that fails every request adds and
        forgets without end."""
        get = self._holders.get
        ring.order = deque(b for b in dict.fromkeys(ring.order) if get(b, 0) & bit)

    def forget(self, slot: int, blocks: list[int]) -> None:
        """Take back blocks that were inserted for a request which then failed."""
        ring = self._rings.get(slot)
        if ring is None:
            return
        for block in blocks:
            self._drop(slot, ring, block)

    def remove(self, slot: int) -> None:
        """Forget everything about a slot (its endpoint left or restarted)."""
        ring = self._rings.get(slot)
        if ring is None:
            return
        for block in ring.order:
            self._drop(slot, ring, block)
        ring.order.clear()

    def _drop(self, slot: int, ring: _Ring, block: int) -> None:
        bit = 1 << slot
        held = self._holders.get(block, 0)
        if not held & bit:
            return
        if held == bit:
            del self._holders[block]
            self._touched.pop(block, None)
        else:
            self._holders[block] = held & ~bit
            touched = self._touched.get(block, 0)
            if touched & bit:
                _clear(self._touched, block, touched & ~bit)
        ring.bytes_held -= SIZES[block & _GRADE_MASK]
        ring.blocks_held -= 1
        self._entries -= 1

    def _shrink(self, slot: int, ring: _Ring) -> None:
        if ring.bytes_held <= ring.bytes_max and self._entries <= self.blocks_max:
            return
        bit, order, touched, holders = 1 << slot, ring.order, self._touched, self._holders
        while order and (ring.bytes_held > ring.bytes_max or self._entries > self.blocks_max):
            block = order.popleft()
            held = holders.get(block, 0)
            if not held & bit:
                continue
            if touched and (seen := touched.get(block, 0)) & bit:
                _clear(touched, block, seen & ~bit)
                order.append(block)
                continue
            if held == bit:
                del holders[block]
            else:
                holders[block] = held & ~bit
            ring.bytes_held -= SIZES[block & _GRADE_MASK]
            ring.blocks_held -= 1
            self._entries -= 1
            self.evicted_total += 1


def _clear(touched: dict[int, int], block: int, rest: int) -> None:
    if rest:
        touched[block] = rest
    else:
        del touched[block]


def _set_bits(column: Column, bits: int, value: float) -> None:
    if bits.bit_count() > _MANY_BITS:
        raw = np.frombuffer(bits.to_bytes((len(column) + 7) // 8, "little"), dtype=np.uint8)
        mask = np.unpackbits(raw, count=len(column), bitorder="little").view(bool)
        column[mask] = value
        return
    while bits:
        low = bits & -bits
        column[low.bit_length() - 1] = value
        bits ^= low
