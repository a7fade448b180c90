"""What the router counts and logs: RED figures per endpoint, and one line per request."""

from __future__ import annotations

import sys
import traceback
from bisect import bisect_left
from collections import Counter, deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec

from infctl.slo import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from infctl.core.commands import Shed
    from infctl.core.director import Director
    from infctl.core.fleet import Endpoint
    from infctl.core.life import Life
    from infctl.router.proxy import Exchange

_WINDOW = 512
_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
_LINES_MAX = 10_000
_RATE_KEEP = 0.7
_PAGE_S = 1.0


class Histogram:
    """Counts per bucket of seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound, count up to it), ending with +Inf."""
        running = 0
        for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), self.counts, strict=True):
            running += count
            yield bound, running


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


class RequestLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the log says of one request; None where it does not apply."""

    id: str
    path: str
    model: str
    status: int
    tenant: str | None = None
    endpoint: str | None = None
    attempt: int | None = None
    duration_ms: float = 0.0
    ttft_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    expected_cached_tokens: int | None = None
    output_tokens: int | None = None
    priority: str | None = None
    queue_ms: float | None = None
    shed: str | None = None

    def text(self) -> str:
        """Fields as `name=value`; only the model's name comes from outside."""
        line = (
            f"id={self.id} path={self.path} model={_plain(self.model)} status={self.status} "
            f"endpoint={self.endpoint} attempt={self.attempt} duration_ms={self.duration_ms}"
        )
        if self.tenant is not None:
            line += f" tenant={self.tenant}"
        if self.queue_ms is not None:
            line += f" priority={self.priority} queue_ms={self.queue_ms}"
            if self.shed is not None:
                line += f" shed={self.shed}"
        if self.ttft_ms is not None:
            line += f" ttft_ms={self.ttft_ms}"
        if self.prompt_tokens is not None:
            line += (
                f" prompt_tokens={self.prompt_tokens} cached_tokens={self.cached_tokens} "
                f"expected_cached_tokens={self.expected_cached_tokens} "
                f"output_tokens={self.output_tokens}"
            )
        return line


class Log:
    """One line per event, as text or JSON, buffered between flushes."""

    def __init__(self, fmt: str, out: TextIO, wall: Callable[[], float]) -> None:
        self._json = fmt == "json"
        self._out = out
        self._wall = wall
        self._lines: list[str] = []
        self._dropped = 0

    def request(self, line: RequestLine) -> None:
        """Note one request."""
        stamp = self._wall()
        if self._json:
            fields = msgspec.json.encode(line)[1:].decode()
            self._keep(f'{{"ts":{stamp:.3f},"event":"request",{fields}')
        else:
            self._keep(f"{stamp:.3f} request {line.text()}")

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        """Note one event."""
        stamp = self._wall()
        if self._json:
            row = {"ts": round(stamp, 3), "event": kind} | fields
            self._keep(msgspec.json.encode(row).decode())
        else:
            pairs = [f"{k}={_plain(v)}" for k, v in fields.items() if v is not None]
            self._keep(f"{stamp:.3f} {kind} {' '.join(pairs)}")

    def _keep(self, line: str) -> None:
        if len(self._lines) < _LINES_MAX:
            self._lines.append(line)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Write what has gathered. A full disk or closed pipe must not stop the router."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._lines.pop()
            self.event("log_overflow", {"lines_dropped": dropped + 1})
        if not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        with suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()


def _plain(value: Any) -> Any:
    """As it is, but quoted where a log's reader could mistake it for more than one value."""
    if type(value) is not str or (value.isascii() and value.isprintable() and " " not in value):
        return value
    return msgspec.json.encode(value).decode()


class ClassStats:
    """What flow control did with one priority class."""

    def __init__(self) -> None:
        self.queue = Histogram()
        self.shed: Counter[Shed] = Counter()


class Telemetry:
    """Counters of one router, its log, and their exposition; `priorities` are the classes."""

    CONTENT_TYPE: ClassVar[bytes] = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, priorities: Sequence[str]) -> None:
        self.endpoints: dict[str, EndpointStats] = {}
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
        if exchange.endpoint is None:
            self.rejected[exchange.status] += 1
        else:
            self._count(exchange, duration)
        if self._log is not None:
            line = _request_line(exchange, duration)
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

    def _count(self, exchange: Exchange, duration: float) -> None:
        if exchange.endpoint is None:
            return
        stats = self.stats(exchange.endpoint.id)
        stats.statuses[exchange.status] += 1
        stats.duration.add(duration)
        self.streamed(exchange)
        if exchange.first_byte and exchange.request.stream:
            ttft = exchange.first_byte - exchange.arrived
            stats.ttft.add(ttft)
            stats.ttfts_ms.append(ttft * 1000.0)
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

    def exposition(self, director: Director, lives: Mapping[int, Life], now: float) -> bytes:
        """The Prometheus text of everything counted, at most a second old: it takes milliseconds
        to make, so a flood of scrapes must not make one each."""
        from infctl.router.exposition import render

        made_at, text = self._page
        if not text or now - made_at > _PAGE_S:
            text = render(self, director, lives)
            self._page = (now, text)
        return text


def _request_line(exchange: Exchange, duration: float) -> RequestLine:
    usage = exchange.usage
    ttft = exchange.first_byte - exchange.arrived if exchange.first_byte else None
    return RequestLine(
        id=exchange.request_id.decode("latin-1"),
        path=exchange.head.url.partition(b"?")[0].decode("latin-1"),
        model=exchange.request.model,
        status=exchange.status,
        tenant=exchange.request.tenant or None,
        endpoint=exchange.endpoint.id if exchange.endpoint else None,
        attempt=exchange.attempt or None,
        duration_ms=round(duration * 1000, 1),
        ttft_ms=round(ttft * 1000, 1) if ttft is not None else None,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        expected_cached_tokens=exchange.expected_cached if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
    )


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
