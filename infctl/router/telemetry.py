"""What the router counts: RED figures per endpoint, model and tenant, and what it did for them."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec

from infctl.router.accesslog import Log, request_line
from infctl.router.stats import ClassStats, EndpointStats, Named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from infctl.core.director import Director
    from infctl.core.fleet import Endpoint
    from infctl.core.life import Life
    from infctl.router.accesslog import RequestLine
    from infctl.router.proxy import Exchange
    from infctl.router.recorder import Recorder
    from infctl.router.tokenising import TokenisingStats

_RATE_KEEP = 0.7
_PAGE_S = 1.0


class Telemetry:
    """Counters of one router, its log, and their exposition; `priorities` are the classes."""

    CONTENT_TYPE: ClassVar[bytes] = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, priorities: Sequence[str]) -> None:
        self.endpoints: dict[str, EndpointStats] = {}
        self.models = Named()
        self.tenants = Named()
        self.classes = {name: ClassStats() for name in priorities}
        self._names = tuple(priorities)
        self.refused: Counter[int] = Counter()
        self.rejected: Counter[int] = Counter()
        self.unknown_paths = 0
        self.retries = 0
        self.continued = 0
        self.not_kept = 0
        self.hedges = 0
        self.hedges_won = 0
        self.kept_bytes = 0
        self.missing_series: dict[str, tuple[str, ...]] = {}
        self.recorder: Recorder | None = None
        self._log: Log | None = None
        self._last_tick = 0.0
        self._page = (0.0, b"")

    def open_log(self, fmt: str, wall: Callable[[], float], out: TextIO = sys.stderr) -> None:
        """Start logging."""
        self._log = Log(fmt, out, wall)

    def log(self, kind: str, **fields: Any) -> None:
        """Log an event other than a request."""
        if self._log is not None:
            self._log.event(kind, fields)

    def bug(self, what: str, error: Exception) -> None:
        """Log an exception that should not have been: in a plugin, or in infctl."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
        self.log("exception", what=what, where=where, error=f"{type(error).__name__}: {error}")

    def flush(self) -> None:
        """Write buffered log lines."""
        if self._log is not None:
            self._log.flush()

    def stats(self, endpoint_id: str) -> EndpointStats:
        """The figures of one endpoint."""
        found = self.endpoints.get(endpoint_id)
        if found is None:
            found = self.endpoints[endpoint_id] = EndpointStats()
        return found

    def forget(self, endpoint_id: str) -> None:
        """Drop the figures of an endpoint that left for good."""
        self.endpoints.pop(endpoint_id, None)
        self.missing_series.pop(endpoint_id, None)

    def leg_failed(
        self, exchange: Exchange, endpoint: Endpoint | None, reason: str, then: str
    ) -> None:
        """An endpoint failed a request; `then` it continues, retries, is hedged, or is cut."""
        if endpoint is not None:
            stats = self.stats(endpoint.id)
            stats.failed_legs += 1
            stats.cut_streams += then == "cut"
        self.continued += then == "continues"
        self.log(
            "leg_failed",
            id=exchange.request_id.decode("latin-1"),
            endpoint=endpoint.id if endpoint else None,
            attempt=exchange.attempt,
            reason=reason,
            then=then,
            not_continued=exchange.why_not or None,
        )

    def record(self, exchange: Exchange, now: float) -> None:
        """A request is over."""
        duration = now - exchange.arrived
        if exchange.attempt > 1:
            self.retries += exchange.attempt - 1
        queued = exchange.queue_ms > 0.0 or exchange.shed is not None
        if queued:
            self._queued(exchange)
        ttft = None
        if exchange.first_byte and exchange.request.stream:
            ttft = exchange.first_byte - exchange.arrived
        self._count_names(exchange, duration, ttft)
        if exchange.endpoint is None:
            self.rejected[exchange.status] += 1
        else:
            self._count(exchange, self.stats(exchange.endpoint.id), duration, ttft)
        if self._log is not None:
            line = request_line(exchange, duration)
            self._log.request(self._with_queue(line, exchange) if queued else line)

    def _with_queue(self, line: RequestLine, exchange: Exchange) -> RequestLine:
        return msgspec.structs.replace(
            line,
            priority=self._names[exchange.request.priority],
            queue_ms=round(exchange.queue_ms, 1),
            shed=exchange.shed.value if exchange.shed else None,
        )

    def _queued(self, exchange: Exchange) -> None:
        stats = self.classes[self._names[exchange.request.priority]]
        stats.queue.add(exchange.queue_ms / 1000.0)
        if exchange.shed is not None:
            stats.shed[exchange.shed] += 1

    def _count_names(self, exchange: Exchange, duration: float, ttft: float | None) -> None:
        """A model's name comes from the client: only an answer vouches for it."""
        request, status, usage = exchange.request, exchange.status, exchange.usage
        self.models.of(request.model, status == 200).add(status, duration, ttft, usage)
        if request.tenant:
            self.tenants.of(request.tenant).add(status, duration, ttft, usage)

    def turned_away(self, status: int, tenant: str) -> None:
        """A request was refused for its key or its limits; `tenant` is empty where none is known,
        and comes from the file of keys."""
        self.refused[status] += 1
        if tenant:
            self.tenants.of(tenant).statuses[status] += 1

    def _count(
        self, exchange: Exchange, stats: EndpointStats, duration: float, ttft: float | None
    ) -> None:
        stats.statuses[exchange.status] += 1
        stats.duration.add(duration)
        self.streamed(exchange)
        if ttft is not None:
            stats.ttft.add(ttft)
            stats.ttfts_ms.append(ttft * 1000.0)
            if exchange.status == 200:
                _count_tokens(exchange, stats)
        usage = exchange.usage
        if usage is not None:
            stats.output_tokens += usage.completion_tokens or 0
            if usage.cached_tokens is not None:
                stats.prompt_tokens += usage.prompt_tokens or 0
                stats.cached_tokens += usage.cached_tokens

    def streamed(self, exchange: Exchange) -> None:
        """Count the events a stream has passed on since the last look."""
        if exchange.endpoint is not None:
            self.stats(exchange.endpoint.id).new_events += exchange.new_events()

    def tick(self, now: float) -> None:
        """Update the rates; call about once a second."""
        took = now - self._last_tick
        self._last_tick = now
        if not 0 < took < 60:
            return
        for stats in self.endpoints.values():
            rate = stats.new_events / took
            stats.events += stats.new_events
            stats.new_events = 0
            stats.tokens_per_s = stats.tokens_per_s * _RATE_KEEP + rate * (1 - _RATE_KEEP)
        self.flush()

    def exposition(
        self,
        director: Director,
        lives: Mapping[int, Life],
        now: float,
        tokenising: TokenisingStats | None = None,
    ) -> bytes:
        """The Prometheus text of everything counted, at most a second old: it takes milliseconds
        to make, so a flood of scrapes must not make one each."""
        from infctl.router.exposition import render

        made_at, text = self._page
        if not text or now - made_at > _PAGE_S:
            text = render(self, director, lives, tokenising)
            self._page = (now, text)
        return text


def _count_tokens(exchange: Exchange, stats: EndpointStats) -> None:
    """How fast a stream's tokens came: the mean, and the longest wait between two reads. Where the
    engine told no usage, events stand for tokens."""
    leg, usage = exchange.leg, exchange.usage
    if leg is None:
        return
    tokens = usage.completion_tokens if usage is not None else None
    steps = (tokens or exchange.events) - 1
    if steps > 0:
        stats.token_time.add((leg.heard - exchange.first_byte) / steps)
        stats.longest_gap.add(leg.gap_s)
