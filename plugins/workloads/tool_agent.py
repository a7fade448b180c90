"""Agents that call tools: long shared system prompts, many short turns.

Source: kvcache-ai/Mooncake, FAST'25 paper and release, tool&agent workload: 23,608 requests in
one hour, 8,596 tokens in and 182 out on average, cache ratio 59 %, system prompts "fully
repetitive". The means, the rate and the ratio are the source's; the shapes around them (a log-
normal spread, system prompts by a Zipf law, think times of tools) are assumptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from infctl.plugin import Quantiles, SessionModel, WorkloadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUT_TOKENS = Quantiles(
    *((0.0, 1100), (0.05, 1800), (0.1, 2400), (0.25, 3900), (0.5, 6500), (0.75, 10400)),
    *((0.9, 16100), (0.95, 21000), (0.99, 35000), (1.0, 62000)),
)
OUTPUT_TOKENS = Quantiles(
    *((0.0, 8), (0.1, 24), (0.25, 46), (0.5, 98), (0.75, 206), (0.9, 364), (0.99, 1020)),
    (1.0, 1800),
)
GROWTH_TOKENS = Quantiles((0.0, 40), (0.25, 200), (0.5, 500), (0.75, 1300), (0.95, 4500), (1, 9000))
THINK_S = Quantiles((0.0, 2), (0.5, 8), (0.9, 30), (1.0, 90))
SYSTEM_TOKENS = (2048, 1024, 4096, 1536, 3072, 1024, 6144, 2560, 1024, 8192)


class ToolAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate_rps` requests a second; `hit_ceiling` the hit share of an infinite prefix cache;
    `agents` applications, each with its own system prompt."""

    rate_rps: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 6.6
    hit_ceiling: Annotated[float, msgspec.Meta(ge=0, le=0.95)] = 0.59
    agents: Annotated[int, msgspec.Meta(gt=0, le=1000)] = 10

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """Requests in order of arrival, endless without a limit."""
        return SessionModel(
            rate_rps=self.rate_rps,
            hit_ceiling=self.hit_ceiling,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            growth_tokens=GROWTH_TOKENS,
            think_s=THINK_S,
            system_tokens=tuple(SYSTEM_TOKENS[i % len(SYSTEM_TOKENS)] for i in range(self.agents)),
            system_weights=tuple(1.0 / (i + 1) for i in range(self.agents)),
            patience_s=120.0,
        ).requests(seed, limit)
