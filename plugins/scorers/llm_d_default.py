"""llm-d's default: cached prefix, queue and KV memory, weighted 3, 2 and 2."""

from typing import ClassVar, Literal

import msgspec
import numpy as np

from infctl.plugin import Column, Fleet, Request


class LlmDDefault(msgspec.Struct, frozen=True):
    """The default profile of llm-d's scheduler (llm-d.ai/docs, "Request Scheduler"; scorers of the
    Kubernetes Gateway API Inference Extension).

    Each endpoint gets the weighted mean of three shares: the part of the prompt whose prefix it
    holds; its place between the longest queue (0) and the shortest (1), where 1 is for all if
    queues are equal; and its free KV memory. Queue and memory are as the engine last reported. The
    highest takes the request, equals are drawn among at random. Differences: prefixes are looked
    up in this router's index, without a limit of the blocks compared.
    """

    prefix_weight: float = 3.0
    queue_weight: float = 2.0
    kv_weight: float = 2.0

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def __post_init__(self) -> None:
        weights = self.prefix_weight, self.queue_weight, self.kv_weight
        if min(weights) < 0 or not sum(weights):
            raise ValueError("weights must not be negative, and one of them above 0")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        total = np.minimum(
            cached * (self.prefix_weight / max(request.prompt_tokens, 1.0)), self.prefix_weight
        )
        total += (1.0 - np.minimum(fleet.kv_usage, 1.0)) * self.kv_weight
        total += self._queue(request, fleet) * self.queue_weight
        return total / (self.prefix_weight + self.queue_weight + self.kv_weight)

    @staticmethod
    def _queue(request: Request, fleet: Fleet) -> Column | float:
        queues = fleet.waiting[fleet.serving(request.model)]
        if not len(queues):
            return 1.0
        shortest, longest = float(queues.min()), float(queues.max())
        if shortest == longest:
            return 1.0
        place: Column = ((longest - fleet.waiting) / (longest - shortest)).clip(0.0, 1.0)
        return place
