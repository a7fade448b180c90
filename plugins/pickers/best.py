"""The best score wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from infctl.plugin import Column, Fleet

if TYPE_CHECKING:
    from random import Random


class Best(msgspec.Struct, frozen=True):
    """The highest score; equal scores are drawn among at random, so that ties do not herd."""

    uses_scores: ClassVar[bool] = True

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        first = int(scores.argmax())
        ties = (scores == scores[first]).nonzero()[0]
        return first if len(ties) == 1 else int(ties[random.randrange(len(ties))])
