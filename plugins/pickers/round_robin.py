"""Each endpoint in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from infctl.plugin import Column, Fleet

if TYPE_CHECKING:
    from random import Random


class RoundRobin:
    """The next allowed endpoint after the last one, whatever its score."""

    uses_scores: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last = -1

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        allowed = np.flatnonzero(scores > -np.inf)
        after = int(np.searchsorted(allowed, self._last, side="right"))
        self._last = int(allowed[after % len(allowed)])
        return self._last
