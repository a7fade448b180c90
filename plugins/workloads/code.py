"""Code completion: medium prompts, very short answers.

Source: Azure/AzurePublicDataset, `AzureLLMInferenceTrace_code.csv` of 2023 (CC-BY-4.0; Splitwise,
ISCA'24): 8,819 requests over 57 minutes, 2,048 tokens in and 28 out on average. The source has no
prefixes; `shared_tokens` gives all prompts a common head (a system prompt) where one is wanted.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Annotated

import msgspec

from infctl.plugin import Draws, Quantiles, Segment, WorkloadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUT_TOKENS = Quantiles(
    *((0, 3), (0.01, 17), (0.05, 75), (0.1, 147), (0.2, 386), (0.3, 770), (0.4, 1075)),
    *((0.5, 1469), (0.6, 1909), (0.7, 2433), (0.8, 3192), (0.9, 5188), (0.93, 6194)),
    *((0.95, 7303), (0.97, 7435), (1, 7437)),
)
OUTPUT_TOKENS = Quantiles(
    *((0, 6), (0.05, 6), (0.1, 7), (0.2, 8), (0.3, 9), (0.4, 11), (0.5, 13), (0.6, 16)),
    *((0.7, 20), (0.8, 29), (0.9, 55), (0.93, 72), (0.95, 90), (0.97, 128), (0.98, 171)),
    *((0.99, 251), (0.995, 359), (0.999, 600), (1, 1899)),
)


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate_rps` requests a second; the first `shared_tokens` of every prompt are the same."""

    rate_rps: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 2.57
    shared_tokens: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """Requests in order of arrival, endless without a limit."""
        return islice(self._run(seed), limit)

    def _run(self, seed: int) -> Iterator[WorkloadRequest]:
        draws = Draws(seed, stream=0)
        inputs, outputs = (Draws(seed, stream=i).even() for i in (1, 2))
        at_s = 0.0
        for number in count(1):
            own = Segment(draws.id(number), round(INPUT_TOKENS.at(next(inputs))))
            shared = (Segment(draws.id(0), self.shared_tokens),) if self.shared_tokens else ()
            yield WorkloadRequest(at_s, (*shared, own), round(OUTPUT_TOKENS.at(next(outputs))))
            at_s += draws.gap_s(self.rate_rps)
