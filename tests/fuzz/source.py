"""Choices out of bytes: what a fuzzer mutates becomes decisions of a grammar.

The same target takes the bytes of a coverage-guided fuzzer, of hypothesis, or of a test; where
they run out every choice is the first one, so that shorter inputs are simpler ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Source:
    """Bytes, taken one decision at a time."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not taken yet."""
        return max(len(self._data) - self._at, 0)

    def byte(self) -> int:
        """0 to 255."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, bound: int) -> int:
        """0 up to `bound` alone; `bound` at most 65,536."""
        if bound <= 256:
            return self.byte() % bound
        return (self.byte() << 8 | self.byte()) % bound

    def pick(self, items: Sequence[T]) -> T:
        """One of these."""
        return items[self.byte() % len(items)]

    def one_in(self, n: int) -> bool:
        """True for one value in `n`; False where the bytes have run out."""
        return self.byte() % n == n - 1

    def take(self, size: int) -> bytes:
        """Bytes as they are."""
        at = self._at
        self._at = at + size
        return self._data[at : at + size]


def mutated(source: Source, data: bytes, tokens: Sequence[bytes], most: int = 3) -> bytes:
    """`data` with up to `most` pieces put in, taken out, replaced or repeated."""
    for _ in range(source.below(most + 1)):
        at, how = source.below(len(data) + 1), source.below(5)
        size = source.below(9) + 1
        if how == 0:
            data = data[:at] + source.pick(tokens) + data[at:]
        elif how == 1:
            data = data[:at] + data[at + size :]
        elif how == 2:
            data = data[:at] + bytes([source.byte()]) + data[at + 1 :]
        elif how == 3:
            data = data[:at] + source.pick(tokens) + data[at + size :]
        else:
            data = data[:at] + data[at : at + size] + data[at:]
    return data


def cut(source: Source, data: bytes) -> list[bytes]:
    """`data` in reads: whole, in small ones, or cut at a few places."""
    how = source.below(4)
    if how == 0 or not data:
        return [data]
    if how == 1:
        step = source.below(40) + 1
        step = max(step, len(data) // 60)
        return [data[at : at + step] for at in range(0, len(data), step)]
    places = sorted({source.below(len(data)) for _ in range(source.below(6) + 1)} - {0})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
