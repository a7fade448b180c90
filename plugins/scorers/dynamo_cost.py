"""NVIDIA Dynamo's cost: blocks to prefill, weighted, and blocks in use."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request

_BLOCK_TOKENS = 16.0
"""Scales every cost alike, so that no choice depends on it."""


class DynamoCost(msgspec.Struct, frozen=True):
    """The cost function of Dynamo's KV router (docs.nvidia.com/dynamo, "Routing Concepts" and
    "Router Design"), at temperature 0.

    Cost = `overlap_weight` × potential prefill blocks + potential decode blocks; the lowest
    takes the request. Both are of the router's own account, the request counted in. Prefill: the
    prompt tokens sent there that have no first token yet, and those of this prompt that are not
    cached there. Decode: the prompts of all requests open there. Differences: a prefix that
    several open requests share counts once for each, where Dynamo keeps a block once; and only
    streams count as prefill, for only they show when it ended.
    """

    overlap_weight: float = 1.0

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def __post_init__(self) -> None:
        if self.overlap_weight < 0:
            raise ValueError("overlap_weight must not be negative")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        prefill = np.maximum(request.prompt_tokens - cached, 0.0)
        prefill += fleet.pending_tokens
        prefill *= self.overlap_weight
        cost: Column = prefill + fleet.inflight_tokens
        cost += request.prompt_tokens
        return cost * (-1.0 / _BLOCK_TOKENS)
