"""Mostly short prompts, most tokens in long ones: the mix that length buckets are for.

Source: alibaba/ServeGen, one day of a DeepSeek-R1 pool (Apache-2.0), 73 clients weighted by their
rates: 75.7 % of the requests have at most 512 prompt tokens, while 4.4 % beyond 8,192 carry 61 %
of the tokens. The source publishes no prefixes, so no prompt shares any.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Annotated

import msgspec

from infctl.plugin import Draws, Quantiles, Segment, WorkloadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT = (
    Quantiles(
        *((0, 7), (0.01, 8), (0.05, 11), (0.1, 15), (0.25, 30), (0.5, 97), (0.75, 256)),
        *((0.9, 388), (0.95, 425), (0.99, 486), (1, 512)),
    ),
    Quantiles(
        *((0, 150), (0.01, 171), (0.05, 267), (0.1, 338), (0.25, 468), (0.5, 952)),
        *((0.75, 1614), (0.9, 4139), (0.95, 6607), (0.99, 13855), (1, 18000)),
    ),
)
MIDDLE = (
    Quantiles(
        *((0, 513), (0.01, 520), (0.05, 548), (0.1, 587), (0.25, 776), (0.5, 1227)),
        *((0.75, 2380), (0.9, 4560), (0.95, 5922), (0.99, 7627), (1, 8192)),
    ),
    Quantiles(
        *((0, 100), (0.01, 120), (0.05, 173), (0.1, 206), (0.25, 287), (0.5, 470)),
        *((0.75, 871), (0.9, 1555), (0.95, 2489), (0.99, 6566), (1, 9000)),
    ),
)
LONG = (
    Quantiles(
        *((0, 8193), (0.01, 8309), (0.05, 8781), (0.1, 9377), (0.25, 11379), (0.5, 15535)),
        *((0.75, 22216), (0.9, 29104), (0.95, 31730), (0.99, 37826), (1, 49000)),
    ),
    Quantiles(
        *((0, 90), (0.01, 121), (0.05, 237), (0.1, 474), (0.25, 790), (0.5, 1042)),
        *((0.75, 1475), (0.9, 2127), (0.95, 2720), (0.99, 3940), (1, 5100)),
    ),
)


class LongShort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate_rps` requests a second; `short_share` of them up to 512 prompt tokens, `long_share`
    beyond 8,192, the rest between. The source's pool saw 16 a second; the default is a quarter of
    it, which eight engines can serve."""

    rate_rps: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 4.0
    short_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.757
    long_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.044

    def __post_init__(self) -> None:
        if self.short_share + self.long_share > 1.0:
            raise ValueError("short_share and long_share together exceed 1")

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """Requests in order of arrival, endless without a limit."""
        return islice(self._run(seed), limit)

    def _run(self, seed: int) -> Iterator[WorkloadRequest]:
        draws = Draws(seed, stream=0)
        classes, inputs, outputs = (Draws(seed, stream=i).even() for i in (1, 2, 3))
        at_s = 0.0
        for number in count():
            input_tokens, output_tokens = self._class(next(classes))
            prompt = Segment(draws.id(number), round(input_tokens.at(next(inputs))))
            yield WorkloadRequest(at_s, (prompt,), round(output_tokens.at(next(outputs))))
            at_s += draws.gap_s(self.rate_rps)

    def _class(self, share: float) -> tuple[Quantiles, Quantiles]:
        if share < self.short_share:
            return SHORT
        return LONG if share >= 1.0 - self.long_share else MIDDLE
