"""Prefer the endpoint where the first token should come soonest and costs the others least."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request


class PredictedTtft(msgspec.Struct, frozen=True):
    """Cost in ms: prefill queue ahead + own uncached tokens at the endpoint's learned rate +
    one decode step beside what runs there + round trip, and `stall_weight` of the time this
    prefill keeps every request in flight there from its next token.

    The weight was chosen on a simulation of the Mooncake conversation trace: without that term
    the busiest endpoint's decode steps grow (TPOT p90 twice as long), from 0.05 to 0.2 it hardly
    matters (docs/results.md).
    """

    stall_weight: float = 0.1

    unit: ClassVar[Literal["share", "ms"]] = "ms"

    def __post_init__(self) -> None:
        if self.stall_weight < 0:
            raise ValueError("stall_weight must not be negative")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        cost = np.maximum(fleet.free_at_ms - fleet.now_ms, 0.0)
        own_ms = np.maximum(request.prompt_tokens - cached, 0.0) * fleet.ms_per_token
        cost += own_ms
        # Both what this prefill stalls and what the step it joins takes grow with the batch.
        cost += (own_ms * self.stall_weight + fleet.step_ms_per_request) * fleet.inflight
        cost += fleet.fixed_ms
        return -cost
