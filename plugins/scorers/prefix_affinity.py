"""Prefer endpoints that hold more of the prompt's prefix."""

from typing import ClassVar, Literal

import msgspec

from infctl.plugin import Column, Fleet, Request


class PrefixAffinity(msgspec.Struct, frozen=True):
    """Share of the prompt expected to hit the endpoint's prefix cache."""

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        return (cached / max(request.prompt_tokens, 1.0)).clip(0.0, 1.0)
