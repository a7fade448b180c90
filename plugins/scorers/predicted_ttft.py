"""Prefer the endpoint where the first token should come soonest and costs the others least."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request

_SHARE_MAX = 0.85


class PredictedTtft(msgspec.Struct, frozen=True):
    """Cost in ms: time to first token, a share of the answer's time, and what others pay.

    To first token: prefill queue ahead + own uncached tokens at the endpoint's learned rate + a
    decode step + round trip. The answer: its tokens × a step in a batch of this size, stretched by
    the share of time that prompts take there; it counts `answer_weight` (a TTFT of 2 s and a TPOT
    of 50 ms are 40 to 1, an answer has a few hundred tokens: 0.1). Others: own prefill
    stalls each of those who decode there (`others_weight`), and once more whoever comes next,
    whose cached prefixes it pushes out besides (`work_weight`).
    """

    work_weight: float = 1.0
    others_weight: float = 0.4
    answer_weight: float = 0.1

    unit: ClassVar[Literal["share", "ms"]] = "ms"

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        own_ms = np.maximum(request.prompt_tokens - cached, 0.0) * fleet.ms_per_token
        cost = np.maximum(fleet.free_at_ms - fleet.now_ms, 0.0)
        cost += own_ms * (fleet.inflight * self.others_weight + (1.0 + self.work_weight))
        step_ms = fleet.step_ms_per_request * fleet.inflight + fleet.step_ms
        step_ms *= self.answer_weight * request.output_tokens
        step_ms /= 1.0 - np.minimum(fleet.prefill_share, _SHARE_MAX)
        cost += step_ms
        cost += fleet.fixed_ms
        return -cost
