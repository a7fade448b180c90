"""The better of two drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet

if TYPE_CHECKING:
    from random import Random


class PowerOfTwo(msgspec.Struct, frozen=True):
    """Draw two allowed endpoints and take the one with the higher score: near the best, and safe
    when many routers act on the same numbers."""

    uses_scores: ClassVar[bool] = True

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        allowed = np.flatnonzero(scores > -np.inf)
        if len(allowed) == 1:
            return int(allowed[0])
        one, other = random.sample(range(len(allowed)), 2)
        a, b = int(allowed[one]), int(allowed[other])
        return a if scores[a] >= scores[b] else b
