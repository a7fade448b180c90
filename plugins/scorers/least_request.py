"""Prefer endpoints with fewer requests in flight."""

from typing import ClassVar, Literal

import msgspec

from infctl.plugin import Column, Fleet, Request


class LeastRequest(msgspec.Struct, frozen=True):
    """1 / (1 + requests this router has open at the endpoint)."""

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        return 1.0 / (1.0 + fleet.inflight)
