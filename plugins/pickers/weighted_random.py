"""Draw in proportion to the score."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet

if TYPE_CHECKING:
    from random import Random


class WeightedRandom(msgspec.Struct, frozen=True):
    """Softmax of the scores over their spread: the best is `e^(1/temperature)` times as likely as
    the worst, whatever the scores' unit."""

    temperature: float = 0.3

    uses_scores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError("temperature must be above 0")

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        allowed = np.flatnonzero(scores > -np.inf)
        values = scores[allowed]
        spread = float(values.max() - values.min())
        if spread == 0.0:
            return int(allowed[random.randrange(len(allowed))])
        weights = np.exp((values - values.max()) / (spread * self.temperature)).cumsum()
        return int(allowed[np.searchsorted(weights, random.random() * weights[-1])])
