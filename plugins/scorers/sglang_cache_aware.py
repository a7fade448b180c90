"""SGLang's cache-aware rule: the longest cached prefix while loads are even, else least load."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request


class SglangCacheAware(msgspec.Struct, frozen=True):
    """The rule `cache_aware` of SGLang's router (docs.sglang.ai, "SGLang Model Gateway"; defaults
    as published there).

    Loads are the requests open at each endpoint of the model. They are uneven where the largest
    exceeds the smallest by more than `balance_abs_threshold` and by more than
    `balance_rel_threshold` times: then the least loaded endpoint takes the request. While they are
    even, the endpoint that holds the longest prefix does, if that is more than the share
    `cache_threshold` of the prompt; otherwise the least loaded one again. Differences: prefixes are
    looked up in this router's index, whole blocks of it, and equals are drawn among at random.
    """

    cache_threshold: float = 0.3
    balance_abs_threshold: float = 64.0
    balance_rel_threshold: float = 1.5

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def __post_init__(self) -> None:
        if not 0.0 <= self.cache_threshold <= 1.0:
            raise ValueError("cache_threshold must be between 0 and 1")
        if self.balance_abs_threshold < 0:
            raise ValueError("balance_abs_threshold must not be negative")
        if self.balance_rel_threshold < 1:
            raise ValueError("balance_rel_threshold must be at least 1")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        loads = fleet.inflight
        score: Column = -loads
        if request.prompt_tokens > 0.0 and self._even(loads[fleet.serving(request.model)]):
            share = np.minimum(cached / request.prompt_tokens, 1.0)
            np.copyto(score, share, where=share > self.cache_threshold)
        return score

    def _even(self, loads: Column) -> bool:
        if not len(loads):
            return True
        least, most = float(loads.min()), float(loads.max())
        apart = most - least > self.balance_abs_threshold
        return not (apart and most > least * self.balance_rel_threshold)
