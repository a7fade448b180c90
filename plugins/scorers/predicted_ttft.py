"""Prefer the endpoint where the first token should come soonest and costs the others least."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request


class PredictedTtft(msgspec.Struct, frozen=True):
    """Cost in ms: time to first token, and a share of what the request costs what runs there.

    To first token: prefill queue ahead + own uncached tokens at the endpoint's learned rate + a
    decode step + round trip. Others: own prefill stalls each of them, and every step of theirs
    and of this request's own answer takes longer in a larger batch. They count `others_weight`
    (chosen on a simulation of the Mooncake conversation trace, where 0.05 to 0.2 are alike;
    at 0 a cached system prompt outweighs any number of running requests).
    """

    others_weight: float = 0.1

    unit: ClassVar[Literal["share", "ms"]] = "ms"

    def __post_init__(self) -> None:
        if self.others_weight < 0:
            raise ValueError("others_weight must not be negative")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        weight = self.others_weight
        own_ms = np.maximum(request.prompt_tokens - cached, 0.0) * fleet.ms_per_token
        cost = np.maximum(fleet.free_at_ms - fleet.now_ms, 0.0)
        cost += own_ms
        steps = 1.0 + 2.0 * weight * request.output_tokens
        cost += (own_ms * weight + fleet.step_ms_per_request * steps) * fleet.inflight
        cost += fleet.fixed_ms
        return -cost
