"""Prefer endpoints with fewer waiting requests."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request


class QueueDepth(msgspec.Struct, frozen=True):
    """1 with nothing waiting, 0 at `limit`; counts what the engine reports or, when that is
    more, what this router sent there and has no first token of."""

    limit: int = 128

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("limit must be at least 1")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        return 1.0 - np.maximum(fleet.waiting, fleet.pending).clip(0, self.limit) / self.limit
