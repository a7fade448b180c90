"""Prefer endpoints with more free KV cache."""

from typing import ClassVar, Literal

import msgspec

from infctl.plugin import Column, Fleet, Request


class KvUsage(msgspec.Struct, frozen=True):
    """Free share of the KV cache as last reported."""

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        return 1.0 - fleet.kv_usage.clip(0.0, 1.0)
