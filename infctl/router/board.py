"""Tables of numbers that the workers of one router share, in memory that each maps.

Each worker has a table of its own, which it alone writes and the others read. So nothing is locked,
and a worker that is killed or stopped in the middle of a write holds up nobody. A row of the table
belongs to something with an identity (an endpoint, an API key). Workers find these on their own, so
that the same thing may have another row elsewhere, and readers translate; a version, odd while the
identities change, says when to do so again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Words = memoryview[int]
    Table = NDArray[np.float64]
    """One row per column of the board, one cell per slot."""

WORD = 8
_HEADER = 2
_VERSION, _ZERO = range(_HEADER)


def words_of(columns: int, slots: int) -> int:
    """Words that one worker's table takes."""
    return _HEADER + slots * (1 + columns)


class _Other:
    """Another worker's table."""

    def __init__(self, memory: mmap.mmap, start: int, slots: int) -> None:
        self.header = header(memory, start)
        self.identities = np.frombuffer(memory, np.uint64, slots, (start + _HEADER) * WORD)
        self.cells = start + _HEADER + slots
        self.version = -1
        self.own_slot: dict[int, int] = {}


def header(memory: mmap.mmap, start: int) -> Words:
    """The header of a table that starts at a word."""
    return memoryview(memory)[start * WORD : (start + _HEADER) * WORD].cast("Q")


class Board:
    """One worker's view of all tables: `starts` are their first words, `worker` is whose it is."""

    def __init__(
        self, memory: mmap.mmap, starts: Sequence[int], columns: int, slots: int, worker: int
    ) -> None:
        self.slots_max = slots
        start = starts[worker]
        self._header = header(memory, start)
        self._table = np.frombuffer(memory, np.uint64, slots, (start + _HEADER) * WORD)
        cells = (start + _HEADER + slots) * WORD
        self.own: Table = np.frombuffer(memory, np.float64, slots * columns, cells).reshape(
            columns, slots
        )
        self.others = [
            _Other(memory, s, slots) for number, s in enumerate(starts) if number != worker
        ]
        self._columns = columns
        self._all = np.frombuffer(memory, np.float64)
        self._nowhere = start + _ZERO
        self._identities: list[int] = []
        self._where: NDArray[np.intp] = np.zeros((len(self.others), columns, 0), np.intp)

    def identify(self, identities: list[int]) -> None:
        """Say what this worker's slots belong to; 0 to nothing. At most `slots_max` of them."""
        if identities == self._identities:
            return
        self._header[_VERSION] += 1
        self._table[: len(self._identities)] = 0
        self._table[: len(identities)] = np.array(identities, np.uint64)
        self._header[_VERSION] += 1
        self._identities = identities
        shape = (len(self.others), self._columns, len(identities))
        self._where = np.full(shape, self._nowhere, np.intp)
        for other in self.others:
            other.version = -1

    def sum(self) -> Table:
        """What the others' tables hold together, by this worker's slots."""
        for number, other in enumerate(self.others):
            version = other.header[_VERSION]
            if version != other.version and not version & 1:
                self._translate(number, other, version)
        found: Table = self._all.take(self._where).sum(axis=0)
        return found

    def _translate(self, number: int, other: _Other, version: int) -> None:
        """Find out where another worker has what this worker's slots belong to."""
        theirs = {name: slot for slot, name in enumerate(other.identities.tolist()) if name}
        slots = [theirs.get(name, -1) if name else -1 for name in self._identities]
        for column in range(self._columns):
            base = other.cells + column * self.slots_max
            self._where[number, column] = [base + s if s >= 0 else self._nowhere for s in slots]
        other.own_slot = {slot: own for own, slot in enumerate(slots) if slot >= 0}
        if other.header[_VERSION] == version:  # else it has just changed: once more
            other.version = version


def clear(memory: mmap.mmap, start: int, columns: int, slots: int) -> None:
    """Zero the table of a worker that ended; what it had open is not open any more."""
    words = header(memory, start)
    version = (words[_VERSION] | 1) + 1
    begin = start * WORD
    memory[begin : begin + words_of(columns, slots) * WORD] = bytes(words_of(columns, slots) * WORD)
    words[_VERSION] = version
    words.release()
