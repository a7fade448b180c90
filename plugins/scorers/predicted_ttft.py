"""Prefer the endpoint where the first token should come soonest."""

from typing import ClassVar, Literal

import msgspec

from infctl.plugin import Column, Fleet, Request


class PredictedTtft(msgspec.Struct, frozen=True):
    """Cost in ms: prefill queue ahead + own uncached tokens at the endpoint's learned rate +
    one decode step beside what runs there + round trip."""

    unit: ClassVar[Literal["share", "ms"]] = "ms"

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        queue_ms = (fleet.free_at_ms - fleet.now_ms).clip(0.0)
        own_ms = (request.prompt_tokens - cached).clip(0.0) * fleet.ms_per_token
        step_ms = fleet.step_ms + fleet.step_ms_per_request * fleet.inflight
        return -(queue_ms + own_ms + step_ms + fleet.overhead_ms + fleet.rtt_ms)
