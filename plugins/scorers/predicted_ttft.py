"""Prefer the endpoint where the first token should come soonest and costs the others least."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request

_PRESSURE_MAX = 1.5


class PredictedTtft(msgspec.Struct, frozen=True):
    """Cost in ms: time to first token, memory taken from others, and time per token.

    To first token: prefill queue ahead + own uncached tokens at the endpoint's learned rate +
    overhead and round trip. Memory: every prompt token in flight there pushes cached ones out, of
    which `memory_weight` will have to be computed again. Time per token counts the more the closer
    it is to `tpot_ms`, its bound: own prefill stalls each of those who decode there
    (`others_weight`), and the answer takes a step in that batch for each of its tokens
    (`answer_weight`; a TTFT of 2 s and a TPOT of 50 ms are 40 to 1, and an answer has a few hundred
    tokens). Weights are chosen on the Mooncake conversation trace (docs/results.md).
    """

    memory_weight: float = 0.2
    others_weight: float = 0.2
    answer_weight: float = 0.1
    tpot_ms: float = 50.0

    unit: ClassVar[Literal["share", "ms"]] = "ms"

    def __post_init__(self) -> None:
        if min(self.memory_weight, self.others_weight, self.answer_weight) < 0:
            raise ValueError("weights must not be negative")
        if self.tpot_ms <= 0:
            raise ValueError("tpot_ms must be above 0")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        per_token, open_now = fleet.ms_per_token, fleet.inflight
        own_ms = np.maximum(request.prompt_tokens - cached, 0.0)
        own_ms *= per_token
        tpot_ms = fleet.step_ms_per_request * open_now
        tpot_ms += fleet.step_ms
        pressure = np.minimum(tpot_ms * (1.0 / self.tpot_ms), _PRESSURE_MAX)
        cost = own_ms * open_now
        cost *= self.others_weight
        tpot_ms *= self.answer_weight * request.output_tokens
        cost += tpot_ms
        cost *= pressure
        cost += np.maximum(fleet.free_at_ms - fleet.now_ms, 0.0)
        cost += own_ms
        cost += fleet.inflight_tokens * per_token * self.memory_weight
        cost += fleet.fixed_ms
        return -cost
