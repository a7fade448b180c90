"""OpenTelemetry spans of requests, where a collector is configured.

A request's trace is the client's (W3C `traceparent`), or a new one. While it runs only ids are
drawn and times that are taken anyway are noted; spans are made when it ends, and a thread of the
OpenTelemetry SDK sends them from a bounded queue.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import suppress
from functools import partial
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from infctl.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.profile.model import Profile
    from infctl.router.leg import Leg
    from infctl.router.proxy import Exchange
    from infctl.router.telemetry import Telemetry
    from infctl.router.wire import Head

_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z"
)
_SAMPLED = 1
_QUEUE_MAX = 8192
_BATCH_MAX = 512
_DELAY_MS = 1000.0
_EXPORT_S = 5.0
_CLOSE_S = 3.0
_COMPLAINT_S = 60.0
_HEADERS = (b"traceparent", b"tracestate")


class Visit(msgspec.Struct, gc=False):
    """One attempt at one endpoint; loop times in seconds, `ended` 0 while it lasts."""

    leg: Leg
    span_id: int
    started: float
    ended: float = 0.0
    error: str = ""


class Trace:
    """One request's part of its trace: `parent_id` 0 where the client gave none. `continued`: an
    answer that had begun went on at another endpoint; `cut`: it was broken off."""

    __slots__ = (
        "_random", "continued", "cut", "flags", "parent_id", "span_id", "state", "trace_id",
        "visits",
    )  # fmt: skip

    def __init__(self, head: Head, random: Random) -> None:
        self._random = random
        self.span_id = _draw(random, 64)
        self.visits: list[Visit] = []
        self.state = b""
        self.continued = self.cut = False
        given = head.get(b"traceparent")
        found = _TRACEPARENT.match(given) if given is not None else None
        if found is None or (found[1] == b"00" and found[5]):
            self.trace_id, self.parent_id, self.flags = _draw(random, 128), 0, _SAMPLED
            return
        self.trace_id, self.parent_id = int(found[2], 16), int(found[3], 16)
        self.flags = int(found[4], 16)
        self.state = b",".join(value for name, value in head.headers if name == b"tracestate")

    def visit(
        self, leg: Leg, headers: list[tuple[bytes, bytes]], now: float
    ) -> list[tuple[bytes, bytes]]:
        """An attempt is sent: the request's headers with its own place in the trace."""
        visit = self._of(leg)
        if visit is None:
            visit = Visit(leg, _draw(self._random, 64), now)
            self.visits.append(visit)
        self.continued = self.continued or leg.exchange.started
        kept = [pair for pair in headers if pair[0] not in _HEADERS]
        flags = self.flags & _SAMPLED
        kept.append(
            (b"traceparent", b"00-%032x-%016x-%02x" % (self.trace_id, visit.span_id, flags))
        )
        if self.state:
            kept.append((b"tracestate", self.state))
        return kept

    def left(self, leg: Leg, now: float, error: str = "") -> None:
        """An attempt is over, for whatever reason; `error` is why it failed, perhaps before it
        could be sent."""
        visit = self._of(leg)
        if visit is None and error:
            visit = Visit(leg, _draw(self._random, 64), now)
            self.visits.append(visit)
        if visit is not None and not visit.ended:
            visit.ended, visit.error = now, error

    def _of(self, leg: Leg) -> Visit | None:
        return next((visit for visit in self.visits if visit.leg is leg), None)


def _draw(random: Random, bits: int) -> int:
    """An id: never 0, which means that there is none."""
    return random.getrandbits(bits) or 1


class Tracing:
    """Makes and sends spans. `complain` gets what goes wrong with that, at most once a minute.

    Raises MachineError where the OpenTelemetry SDK is not installed.
    """

    def __init__(self, endpoint: str, service: str, complain: Callable[[str], None]) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MachineError(
                f"spans need a package that is not installed: {error.name}",
                where="observability.otlp_endpoint",
                hint="Install it: pip install 'infctl[otel]'",
            ) from error
        from infctl.router import spans

        _redirect_logs(complain)
        exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint), timeout=_EXPORT_S)
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUE_MAX,
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=_BATCH_MAX,
        )
        self._resource = Resource.create({"service.name": "infctl-router", "infctl.fleet": service})
        self._spans: Any = spans.of
        self._random = Random()

    def begin(self, head: Head) -> Trace:
        """A request came."""
        return Trace(head, self._random)

    def end(self, exchange: Exchange, now: float) -> None:
        """A request is over: hand its spans to the thread that sends them."""
        trace = exchange.trace
        if trace is None or not trace.flags & _SAMPLED:
            return
        wall = time.time_ns() - int(now * 1e9)
        for span in self._spans(exchange, trace, now, wall, self._resource):
            self._processor.on_end(span)

    def close(self) -> None:
        """Send what is left and stop, without waiting long for a collector that is not there."""
        closing = Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def start(profile: Profile, telemetry: Telemetry) -> Tracing | None:
    """What sends spans of this fleet's requests, where the profile names a collector."""
    endpoint = profile.observability.otlp_endpoint
    if endpoint is None:
        return None
    loop = asyncio.get_running_loop()

    def complain(text: str) -> None:
        with suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(partial(telemetry.log, "spans_not_sent", error=text))

    return Tracing(endpoint, profile.metadata.name, complain)


def _traces_url(endpoint: str) -> str:
    """Where a collector takes traces: the path OTLP says, unless another is given."""
    return endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


class _Complaints(logging.Handler):
    """Takes what the SDK logs, which without a handler would flood standard error."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._complain = complain
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _COMPLAINT_S
            self._complain(record.getMessage()[:300])


def _redirect_logs(complain: Callable[[str], None]) -> None:
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [_Complaints(complain)]
    logger.propagate = False
