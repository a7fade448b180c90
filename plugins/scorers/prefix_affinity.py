"""Prefer endpoints that hold more of the prompt's prefix, unless they are busier than the rest."""

from typing import ClassVar, Literal

import msgspec

from infctl.plugin import Column, Fleet, Request


class PrefixAffinity(msgspec.Struct, frozen=True):
    """Share of the prompt expected to hit the endpoint's cache, less `balance` for each request
    in flight there above the least busy endpoint: a system prompt that all requests share must
    not draw them all to whoever saw it first."""

    balance: float = 0.05

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def __post_init__(self) -> None:
        if self.balance < 0:
            raise ValueError("balance must not be negative")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        share = (cached / max(request.prompt_tokens, 1.0)).clip(0.0, 1.0)
        busy = fleet.inflight[fleet.ready]
        least = busy.min() if len(busy) else 0.0
        return share - self.balance * (fleet.inflight - least).clip(0.0)
