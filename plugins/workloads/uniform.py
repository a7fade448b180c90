"""Random prompts of uniform length that share nothing, as vendor benchmarks use.

Source of the shape: SemiAnalysis InferenceX (formerly InferenceMAX), whose runs ask for 1,024 or
8,192 tokens in and 1,024 out with a `random_range_ratio` of 0.8: lengths uniform between 0.8 N and
N, that is a `spread` of 0.2 and a mean of 0.9 N. It keeps a number of requests open, so run it
with `--concurrency`.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Annotated

import msgspec

from infctl.plugin import Draws, Segment, WorkloadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Uniform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompts of up to `input_tokens` and answers of up to `output_tokens`, either uniform in
    [(1 − spread)·N, N]; `rate_rps` requests a second where no concurrency is given."""

    input_tokens: Tokens = 1024
    output_tokens: Tokens = 1024
    spread: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2
    rate_rps: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 4.0

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """Requests in order of arrival, endless without a limit."""
        return islice(self._run(seed), limit)

    def _run(self, seed: int) -> Iterator[WorkloadRequest]:
        draws = Draws(seed, stream=0)
        inputs, outputs = (Draws(seed, stream=i).even() for i in (1, 2))
        at_s = 0.0
        for number in count():
            prompt = Segment(draws.id(number), self._length(self.input_tokens, next(inputs)))
            yield WorkloadRequest(at_s, (prompt,), self._length(self.output_tokens, next(outputs)))
            at_s += draws.gap_s(self.rate_rps)

    def _length(self, longest: int, share: float) -> int:
        """A whole number from the range, each as likely as any other; at least 1."""
        shortest = max(round(longest * (1.0 - self.spread)), 1)
        return shortest + int(share * (longest - shortest + 1))
