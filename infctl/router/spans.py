"""A finished request as OpenTelemetry spans: one of the router, and a child for each attempt.

Imported only where spans are sent: it needs the OpenTelemetry SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

import infctl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.resources import Resource

    from infctl.router.proxy import Exchange
    from infctl.router.tracing import Trace, Visit

_SCOPE = InstrumentationScope("infctl.router", infctl.__version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status(StatusCode.UNSET)

Attributes = dict[str, str | int | float | bool]


def of(
    exchange: Exchange, trace: Trace, now: float, wall: int, resource: Resource
) -> Iterator[ReadableSpan]:
    """Every span of a request; `wall` is what to add to loop times, in ns, to have wall times."""
    state = TraceState.from_header([trace.state.decode("latin-1")]) if trace.state else None
    own = _context(trace, trace.span_id, state)
    parent = _context(trace, trace.parent_id, state, remote=True) if trace.parent_id else None
    path = exchange.head.url.partition(b"?")[0].decode("latin-1")
    yield ReadableSpan(
        f"POST {path}",
        own,
        parent,
        resource,
        _of_request(exchange, trace, path),
        kind=SpanKind.SERVER,
        status=_status(exchange, trace),
        start_time=wall + int(exchange.arrived * 1e9),
        end_time=wall + int(now * 1e9),
        instrumentation_scope=_SCOPE,
    )
    for visit in trace.visits:
        yield ReadableSpan(
            f"POST {path}",
            _context(trace, visit.span_id, state),
            own,
            resource,
            _of_visit(visit),
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR, visit.error) if visit.error else _OK,
            start_time=wall + int(visit.started * 1e9),
            end_time=wall + int((visit.ended or now) * 1e9),
            instrumentation_scope=_SCOPE,
        )


def _context(
    trace: Trace, span_id: int, state: TraceState | None, remote: bool = False
) -> SpanContext:
    return SpanContext(trace.trace_id, span_id, remote, _SAMPLED, state)


def _status(exchange: Exchange, trace: Trace) -> Status:
    """As OpenTelemetry has it for servers: an error is what is not the client's fault."""
    if exchange.status >= 500:
        return Status(StatusCode.ERROR, f"answered {exchange.status}")
    return Status(StatusCode.ERROR, "the stream was cut") if trace.cut else _OK


def _of_request(exchange: Exchange, trace: Trace, path: str) -> Attributes:
    request, usage = exchange.request, exchange.usage
    found: dict[str, str | int | float | bool | None] = {
        "http.request.method": "POST",
        "url.path": path,
        "http.response.status_code": exchange.status,
        "gen_ai.request.model": request.model,
        "infctl.request_id": exchange.request_id.decode("latin-1"),
        "infctl.endpoint": exchange.endpoint.id if exchange.endpoint is not None else None,
        "infctl.attempt": exchange.attempt,
        "infctl.retries": max(exchange.attempt - 1, 0),
        "infctl.continued": trace.continued,
        "infctl.queue_ms": round(exchange.queue_ms, 3),
        "infctl.tenant": request.tenant or None,
    }
    if exchange.first_byte and request.stream:
        found["infctl.ttft_ms"] = round((exchange.first_byte - exchange.arrived) * 1000.0, 3)
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        found["gen_ai.usage.output_tokens"] = usage.completion_tokens
    return {name: value for name, value in found.items() if value is not None}


def _of_visit(visit: Visit) -> Attributes:
    leg = visit.leg
    found: Attributes = {
        "infctl.endpoint": leg.endpoint.id,
        "infctl.pool": leg.endpoint.pool,
        "infctl.attempt": leg.attempt,
        "infctl.expected_cached_tokens": leg.expected_cached,
        "url.full": leg.endpoint.url,
    }
    if leg.response is not None:
        found["http.response.status_code"] = leg.response.status
    if visit.error:
        found["error.type"] = visit.error
    return found
