"""Multi-turn chat, as in the Mooncake conversation trace.

Source: kvcache-ai/Mooncake, FAST'25 release, `conversation_trace.jsonl` (Apache-2.0): 12,031
requests over 59 minutes. Length, growth and think-time quantiles are the trace's own; block 0
(512 tokens) is common to all prompts, and an infinite cache hits 36.6 % of the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from infctl.plugin import Quantiles, SessionModel, WorkloadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUT_TOKENS = Quantiles(
    *((0.0, 891), (0.01, 894), (0.05, 901), (0.1, 964), (0.15, 1261), (0.2, 1662)),
    *((0.25, 2306), (0.3, 3263), (0.35, 4251), (0.4, 4993), (0.45, 5870), (0.5, 6909)),
    *((0.55, 8187), (0.6, 9570), (0.65, 11238), (0.7, 13196), (0.75, 15367), (0.8, 17869)),
    *((0.85, 21464), (0.88, 24830), (0.9, 27367), (0.92, 30462), (0.94, 35008), (0.95, 39550)),
    *((0.96, 44613), (0.97, 52215), (0.975, 58977), (0.98, 66449), (0.985, 73850)),
    *((0.99, 85400), (0.993, 95236), (0.995, 100810), (0.997, 115104), (1.0, 126195)),
)
OUTPUT_TOKENS = Quantiles(
    *((0.0, 1), (0.01, 3), (0.05, 10), (0.1, 24), (0.15, 46), (0.2, 100), (0.25, 156)),
    *((0.3, 213), (0.35, 256), (0.4, 291), (0.45, 322), (0.5, 350), (0.55, 375), (0.6, 399)),
    *((0.65, 423), (0.7, 447), (0.75, 472), (0.8, 504), (0.85, 543), (0.9, 597), (0.95, 698)),
    *((0.97, 800), (0.98, 892), (0.985, 967), (0.99, 1119), (0.995, 1568), (0.998, 2000)),
    (1.0, 2000),
)
GROWTH_TOKENS = Quantiles(
    (0.0, 30), (0.25, 187), (0.5, 454), (0.75, 900), (0.9, 4621), (0.95, 7419), (0.99, 17221)
)
THINK_S = Quantiles(
    *((0.0, 6), (0.01, 12), (0.05, 30), (0.1, 42), (0.25, 66), (0.5, 123), (0.75, 264)),
    *((0.9, 483), (0.95, 615)),
)


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate_rps` requests a second; `hit_ceiling` the hit share of an infinite prefix cache."""

    rate_rps: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3.4
    hit_ceiling: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.366

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """Requests in order of arrival, endless without a limit."""
        return SessionModel(
            rate_rps=self.rate_rps,
            hit_ceiling=self.hit_ceiling,
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            growth_tokens=GROWTH_TOKENS,
            think_s=THINK_S,
        ).requests(seed, limit)
