"""How much of a workload's prompts an unlimited prefix cache could serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infctl.workload.model import WorkloadRequest


class PrefixMeter:
    """Counts blocks of `block_tokens` tokens, and those an infinite cache would hit.

    A block counts as hit when it and everything before it was sent before; the last block of a
    prompt may be partial. For Mooncake traces (512) this is the hit ceiling of their `hash_ids`.
    """

    def __init__(self, block_tokens: int = 512) -> None:
        self.block_tokens = block_tokens
        self.blocks = 0
        self.hits = 0
        self._seen: set[int] = set()

    def add(self, request: WorkloadRequest) -> int:
        """Take in one request and return its hit blocks."""
        chain = shared_tokens = total_tokens = 0
        contiguous = True
        for segment in request.prompt:
            chain = hash((chain, segment.id, segment.tokens))
            total_tokens += segment.tokens
            contiguous = contiguous and chain in self._seen
            if contiguous:
                shared_tokens = total_tokens
            self._seen.add(chain)
        blocks = -(-total_tokens // self.block_tokens)
        hits = blocks if contiguous else shared_tokens // self.block_tokens
        self.blocks += blocks
        self.hits += hits
        return hits

    @property
    def ceiling(self) -> float:
        """The hit share so far, 0..1."""
        return self.hits / self.blocks if self.blocks else 0.0


def hit_ceiling(requests: Iterable[WorkloadRequest], block_tokens: int = 512) -> float:
    """The share of prompt blocks that an infinite prefix cache would hit, 0..1."""
    meter = PrefixMeter(block_tokens)
    for request in requests:
        meter.add(request)
    return meter.ceiling
