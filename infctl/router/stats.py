"""Figures of endpoints, priority classes, models and tenants."""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING

from infctl.core.histogram import TOKEN_SECONDS, Histogram
from infctl.slo import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from infctl.core.commands import Shed
    from infctl.core.events import Usage

_WINDOW = 512
_NAMES_MAX = 100
OTHER = "other"


class EndpointStats:
    """What one endpoint did for this router's clients."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.failed_legs = 0
        self.cut_streams = 0
        self.ejections: Counter[str] = Counter()
        self.canary_failures = 0
        self.restarts_asked = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.ttft = Histogram()
        self.duration = Histogram()
        self.token_time = Histogram(TOKEN_SECONDS)
        self.longest_gap = Histogram(TOKEN_SECONDS)
        self.stalls_suspected = 0
        self.ttfts_ms: deque[float] = deque(maxlen=_WINDOW)
        self.tokens_per_s = 0.0
        self.new_events = 0
        self.events = 0

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    def hit_rate(self) -> float | None:
        """Cached share of prompt tokens, by the engine's own usage; None before any."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def ttft_ms(self) -> dict[str, float | None]:
        """p50 and p99 over the last requests; None before any."""
        ordered = sorted(self.ttfts_ms)
        return {"p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99)}


class ClassStats:
    """What flow control did with one priority class."""

    def __init__(self) -> None:
        self.queue = Histogram()
        self.shed: Counter[Shed] = Counter()


class Red:
    """Rate, errors and duration of one model's or one tenant's requests, and their tokens."""

    __slots__ = ("duration", "output_tokens", "prompt_tokens", "statuses", "ttft")

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.duration = Histogram()
        self.ttft = Histogram()
        self.prompt_tokens = 0
        self.output_tokens = 0

    def add(
        self, status: int, duration_s: float, ttft_s: float | None, usage: Usage | None
    ) -> None:
        """Take in one request."""
        self.statuses[status] += 1
        self.duration.add(duration_s)
        if ttft_s is not None:
            self.ttft.add(ttft_s)
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens or 0
            self.output_tokens += usage.completion_tokens or 0


class Named:
    """Figures by a name; names beyond the first 100 count as `other`, for each is a series of its
    own in every store of metrics."""

    def __init__(self, names_max: int = _NAMES_MAX) -> None:
        self._names_max = names_max
        self._figures: dict[str, Red] = {}
        self._other: Red | None = None

    def of(self, name: str, known: bool = True) -> Red:
        """The figures a request with this name counts for. `known` False: nothing vouches for the
        name, so it becomes no new one."""
        found = self._figures.get(name)
        if found is not None:
            return found
        if known and name != OTHER and len(self._figures) < self._names_max:
            found = self._figures[name] = Red()
            return found
        if self._other is None:
            self._other = Red()
        return self._other

    def items(self) -> Iterator[tuple[str, Red]]:
        """Names and figures, `other` last; who really is called that is counted with them."""
        yield from self._figures.items()
        if self._other is not None:
            yield OTHER, self._other


def total(endpoints: Iterable[EndpointStats], limit: int = 1024) -> EndpointStats:
    """Several endpoints' figures as one, for a totals row."""
    whole = EndpointStats()
    whole.ttfts_ms = deque(maxlen=_WINDOW * limit)
    for stats in islice(endpoints, limit):
        whole.statuses.update(stats.statuses)
        whole.failed_legs += stats.failed_legs
        whole.prompt_tokens += stats.prompt_tokens
        whole.cached_tokens += stats.cached_tokens
        whole.output_tokens += stats.output_tokens
        whole.tokens_per_s += stats.tokens_per_s
        whole.ttfts_ms.extend(stats.ttfts_ms)
    return whole
