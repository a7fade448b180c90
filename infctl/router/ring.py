"""News of prefixes from one worker of a router to the others, in memory that all of them map.

One writer, any number of readers, no lock. A record is a word with slot, kind and count, then the
blocks' hashes. Words are counted without end; a reader that fell behind by more than the ring skips
to its end. `reserved` runs ahead of `written`, so that a reader sees when what it copied may have
been overwritten meanwhile. What is lost or torn costs a cache hit, never a request.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    Words = memoryview[int]

RING_WORDS = 1 << 16
"""A second of news at some 10,000 requests a second."""

RECORD_MAX = 4096
"""Blocks of one record; the longest prompt that is hashed has half as many."""

_CATCH_UP_WORDS = 2 * RECORD_MAX
"""News taken in at once, so that a worker that was idle does not stand still over it."""

_WRITTEN, _RESERVED, _HEADER = range(3)
_WORD = 8
_SLOT_SHIFT, _HELD, _COUNT = 33, 1 << 32, (1 << 32) - 1


def words_of() -> int:
    """Words that a ring takes."""
    return _HEADER + RING_WORDS


class Writer:
    """The worker's own ring, which starts at a word of the memory. News gather until `flush`, for
    a write costs more than what it writes."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._header, self._ring = _views(memory, start)
        self._gathered = array("Q")

    def publish(self, slot: int, blocks: list[int], held: bool) -> None:
        """The slot holds these blocks now, or is not believed to any more."""
        count = len(blocks)
        if count > RECORD_MAX:
            return
        gathered = self._gathered
        gathered.append(slot << _SLOT_SHIFT | (_HELD if held else 0) | count)
        gathered.extend(blocks)
        if len(gathered) > RECORD_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        count = len(self._gathered)
        if not count:
            return
        header, ring, words = self._header, self._ring, memoryview(self._gathered)
        start = header[_WRITTEN]
        header[_RESERVED] = start + count
        at = start % RING_WORDS
        room = RING_WORDS - at
        if count <= room:
            ring[at : at + count] = words
        else:
            ring[at:] = words[:room]
            ring[: count - room] = words[room:]
        header[_WRITTEN] = start + count
        self._gathered = array("Q")


class Reader:
    """Another worker's ring, from now on."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._header, self._ring = _views(memory, start)
        self._read = self._header[_WRITTEN]
        self.skipped = 0

    def records(self) -> Iterator[tuple[int, list[int], bool]]:
        """(slot of the writer, blocks, held) of what was written since, some at a time."""
        header = self._header
        written = header[_WRITTEN]
        behind = written - self._read
        if not behind:
            return
        count = min(behind, _CATCH_UP_WORDS)
        words = self._copy(count)
        if behind > RING_WORDS or header[_RESERVED] - self._read > RING_WORDS:
            self._skip(written)
            return
        at = 0
        while at < count:
            first = words[at]
            end = at + 1 + (first & _COUNT)
            if end > count:
                break
            yield first >> _SLOT_SHIFT, words[at + 1 : end], bool(first & _HELD)
            at = end
        if at:
            self._read += at
        else:  # no record is that long: torn, so what follows it is anyone's guess
            self._skip(written)

    def _skip(self, written: int) -> None:
        self.skipped += written - self._read
        self._read = written

    def _copy(self, count: int) -> list[int]:
        at, ring = self._read % RING_WORDS, self._ring
        if at + count <= RING_WORDS:
            return ring[at : at + count].tolist()
        return ring[at:].tolist() + ring[: at + count - RING_WORDS].tolist()


def _views(memory: mmap.mmap, start: int) -> tuple[Words, Words]:
    words = memoryview(memory).cast("Q")
    return words[start : start + _HEADER], words[start + _HEADER : start + words_of()]
