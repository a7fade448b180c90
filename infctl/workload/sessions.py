"""Multi-turn sessions whose prompts keep a given length distribution and hit ceiling.

Length first: every request draws its prompt length from the distribution, so the distribution
holds by construction. Then a coin decides whether it continues a session. If so it takes, among
the sessions whose user has had time to think, the one whose last prompt is closest to the drawn
length minus a drawn growth (answer and next question); if none is near, it starts a session. The
coin is steered by the share of blocks that an infinite cache would have hit so far, so short runs
have the same hit ceiling as long ones. (A trace recorded from a cold start reaches its own only
after an hour: 21 % in the first 1,000 requests of the conversation trace, 36.6 % in all 12,031.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import count, islice
from typing import TYPE_CHECKING

import msgspec

from infctl.workload.model import Segment, WorkloadRequest
from infctl.workload.prefix import PrefixMeter
from infctl.workload.sampling import Draws, Quantiles

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN_MAX = 8192
_TIDY_EVERY = 512
_CANDIDATES = 64
_STEER_START = 0.4
_STEER_GAIN = 20.0


class SessionModel(msgspec.Struct, frozen=True):
    """What a population of sessions looks like. Lengths in tokens.

    `system_tokens` are system prompts, one per application; `system_weights` their shares of new
    sessions. `growth_tokens` is what a turn adds to the prompt before it, `think_s` the time
    between the turns. A session idle for `patience_s` beyond its think time is over.
    """

    rate_rps: float
    hit_ceiling: float
    input_tokens: Quantiles
    output_tokens: Quantiles
    growth_tokens: Quantiles
    think_s: Quantiles
    system_tokens: tuple[int, ...] = (512,)
    system_weights: tuple[float, ...] = (1.0,)
    patience_s: float = 600.0

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """Requests in order of arrival, endless without a limit."""
        return islice(_Generator(self, seed).run(), limit)


class _Session(msgspec.Struct, order=True):
    """Ordered by the length of the last prompt."""

    tokens: int
    number: int
    ready_s: float
    prompt: tuple[Segment, ...]


class _Generator:
    def __init__(self, model: SessionModel, seed: int) -> None:
        self.model = model
        self.draws = Draws(seed, stream=0)
        self.lengths = Draws(seed, stream=1).even()
        self.outputs = Draws(seed, stream=2).even()
        self.meter = PrefixMeter()
        self.open: list[_Session] = []
        self.sessions = count()
        self.systems = _cumulative(model.system_weights)
        self.ids = map(self.draws.id, count())
        self.system_ids = [next(self.ids) for _ in model.system_tokens]

    def run(self) -> Iterator[WorkloadRequest]:
        at_s = 0.0
        for number in count():
            yield self.request(at_s)
            at_s += self.draws.gap_s(self.model.rate_rps)
            if number % _TIDY_EVERY == 0:
                self.tidy(at_s)

    def request(self, at_s: float) -> WorkloadRequest:
        length = round(self.model.input_tokens.at(next(self.lengths)))
        output = max(1, round(self.model.output_tokens.at(next(self.outputs))))
        session = self.continued(length, at_s) if self.wants_continuation() else None
        session = session or self.started(length)
        session.ready_s = at_s + self.model.think_s.at(self.draws.uniform())
        insort(self.open, session)
        request = WorkloadRequest(at_s, session.prompt, output, f"s{session.number}")
        self.meter.add(request)
        return request

    def wants_continuation(self) -> bool:
        missing = self.model.hit_ceiling - self.meter.ceiling
        return self.draws.uniform() < _STEER_START + _STEER_GAIN * missing

    def continued(self, length: int, at_s: float) -> _Session | None:
        """The open session that fits best, grown to `length`; None if none is near."""
        growth = max(1.0, self.model.growth_tokens.at(self.draws.uniform()))
        wanted = length - growth
        near = bisect_left(self.open, wanted, key=lambda s: s.tokens)
        found: tuple[float, int] | None = None
        for index in range(max(0, near - _CANDIDATES), min(len(self.open), near + _CANDIDATES)):
            session = self.open[index]
            if session.ready_s <= at_s and length / 3 <= session.tokens < length:
                found = min(found or (float("inf"), -1), (abs(session.tokens - wanted), index))
        if found is None:
            return None
        session = self.open.pop(found[1])
        added = Segment(next(self.ids), length - session.tokens)
        return _Session(length, session.number, 0.0, (*session.prompt, added))

    def started(self, length: int) -> _Session:
        which = bisect_left(self.systems, self.draws.uniform())
        system = min(self.model.system_tokens[which], length)
        prompt = [Segment(self.system_ids[which], system)]
        if length > system:
            prompt.append(Segment(next(self.ids), length - system))
        return _Session(length, next(self.sessions), 0.0, tuple(prompt))

    def tidy(self, at_s: float) -> None:
        """Forget sessions that nobody comes back to, and the oldest beyond the bound."""
        since = at_s - self.model.patience_s
        self.open = [s for s in self.open if s.ready_s >= since]
        if len(self.open) > _OPEN_MAX:
            newest = sorted(self.open, key=lambda s: s.ready_s)[-_OPEN_MAX:]
            self.open = sorted(newest)


def _cumulative(weights: tuple[float, ...]) -> list[float]:
    total, running, sums = sum(weights), 0.0, []
    for weight in weights:
        running += weight / total
        sums.append(running)
    sums[-1] = 1.0
    return sums
