"""Drawing from published quantiles, evenly enough that short runs keep the distribution."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from infctl.workload.text import mix

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRATA = 200


class Quantiles:
    """A distribution given as ascending (share, value) points, linear between them."""

    def __init__(self, *points: tuple[float, float]) -> None:
        self.shares = [share for share, _ in points]
        self.values = [value for _, value in points]
        if self.shares != sorted(self.shares) or self.values != sorted(self.values):
            raise ValueError("quantiles must ascend in share and value")

    def at(self, share: float) -> float:
        """The value below which `share` (0..1) of the distribution lies."""
        shares, values = self.shares, self.values
        high = min(max(bisect_right(shares, share), 1), len(shares) - 1)
        low = high - 1
        part = (share - shares[low]) / (shares[high] - shares[low])
        return values[low] + (values[high] - values[low]) * min(max(part, 0.0), 1.0)

    def mean(self) -> float:
        """The mean of the distribution."""
        pairs = list(zip(self.shares, self.values, strict=True))
        return sum((b - a) * (low + high) / 2 for (a, low), (b, high) in pairwise(pairs))


class Draws:
    """Seeded uniform numbers. Built on numpy's PCG64 doubles alone, which stay the same."""

    def __init__(self, seed: int, stream: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64([seed % (1 << 63), stream]))
        self._buffer: list[float] = []
        self._id_base = (mix(seed) >> 1) & ~0xFFFF_FFFF

    def id(self, number: int) -> int:
        """A segment id of this seed alone, for each number below 2**32."""
        return self._id_base | number

    def uniform(self) -> float:
        """A number in [0, 1)."""
        if not self._buffer:
            self._buffer = self._generator.random(1024).tolist()
        return self._buffer.pop()

    def gap_s(self, rate_rps: float) -> float:
        """Seconds to the next arrival of a Poisson process."""
        return -math.log(1.0 - self.uniform()) / rate_rps

    def even(self, strata: int = _STRATA) -> Iterator[float]:
        """Uniform numbers such that every run of `strata` has one in each 1/strata of [0, 1)."""
        while True:
            order = sorted(range(strata), key=self._generator.random(strata).tolist().__getitem__)
            for index in order:
                yield (index + self.uniform()) / strata
