"""Spans as a collector gets them, and what passes when there is none."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from infctl.errors import MachineError
from infctl.router.tracing import Trace, Tracing
from infctl.router.wire import parse_head

from .conftest import SSE_HEAD, Seen, chunk, event, whole

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"model": "m", "prompt": "Hello"}


class Collector:
    """An OTLP collector on loopback that keeps every span."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.paths: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                outer.take(self.path, data)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, path: str, data: bytes) -> None:
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def attributes(holder: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in holder.attributes}


@pytest.fixture
def traced(start_router: Any) -> Callable[..., Any]:
    """A router that sends spans; they are all here once it is left."""

    @asynccontextmanager
    async def start(engines: list[Any], **options: Any) -> AsyncIterator[tuple[Any, Collector]]:
        collector = Collector()
        complaints: list[str] = []
        async with start_router(engines, **options) as running:
            running.router.tracing = Tracing(collector.url, "demo", complaints.append)
            try:
                yield running, collector
            finally:
                await asyncio.to_thread(running.router.tracing.close)
                collector.close()
        assert not complaints

    return start


async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
    usage = b'{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":'
    writer.write(whole(usage + b'{"cached_tokens":4}}}'))


async def test_a_request_is_a_span_with_a_child_for_its_endpoint(
    traced: Any, start_engine: Any
) -> None:
    engine = await start_engine(answer)
    before = time.time_ns()
    async with traced([engine]) as (running, collector):
        status, _, _ = await running.post(
            "/v1/completions", BODY, traceparent=PARENT, tracestate="v=1"
        )
        assert status == 200
    server, client = collector.spans
    assert collector.paths == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "infctl-router"
    assert server.trace_id == client.trace_id == bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
    assert server.parent_span_id == bytes.fromhex("b7ad6b7169203331")
    assert client.parent_span_id == server.span_id
    assert (server.kind, client.kind) == (2, 3)  # SERVER, CLIENT
    told = engine.seen[0].headers
    assert told["traceparent"] == f"00-{server.trace_id.hex()}-{client.span_id.hex()}-01"
    assert told["tracestate"] == server.trace_state == "v=1"
    assert before < server.start_time_unix_nano <= client.start_time_unix_nano
    assert client.end_time_unix_nano <= server.end_time_unix_nano < time.time_ns()
    found = attributes(server)
    assert found["gen_ai.request.model"] == "m"
    assert found["http.response.status_code"] == 200
    assert found["infctl.endpoint"] == "u0"
    assert (found["infctl.retries"], found["infctl.continued"]) == (0, False)
    assert found["gen_ai.usage.input_tokens"] == 7
    assert found["gen_ai.usage.cache_read.input_tokens"] == 4
    assert found["gen_ai.usage.output_tokens"] == 2
    assert "infctl.ttft_ms" not in found
    assert attributes(client)["infctl.endpoint"] == "u0"


async def test_every_attempt_is_a_child_and_says_why_it_failed(
    traced: Any, start_engine: Any
) -> None:
    async def fails(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", "503 Busy"))

    async def streams(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(choices=[{"text": "a"}])) + chunk(b""))

    engines = [await start_engine(fails), await start_engine(streams)]
    gone = await start_engine(answer)
    gone.url = "http://127.0.0.1:9"
    routing = {"picker": "round-robin"}
    async with traced([*engines, gone], routing=routing) as (running, collector):
        for _ in range(3):
            status, _, _ = await running.post("/v1/completions", BODY | {"stream": True})
            assert status == 200
    servers = [s for s in collector.spans if s.kind == 2]
    assert len(servers) == 3
    assert all(not s.parent_span_id for s in servers)
    assert len({s.trace_id for s in servers}) == 3
    errors = set()
    for server in servers:
        children = [s for s in collector.spans if s.parent_span_id == server.span_id]
        assert len(children) == attributes(server)["infctl.attempt"]
        assert server.status.code == 0
        assert attributes(server)["infctl.ttft_ms"] > 0
        *failed, last = children
        assert last.status.code == 0
        errors |= {s.status.message.partition(":")[0] for s in failed}
    assert errors == {"answered 503", "refuses connections"}


async def test_a_stream_that_is_cut_is_an_error(traced: Any, start_engine: Any) -> None:
    async def cut(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(n=1)))
        await writer.drain()
        writer.transport.abort()

    engine = await start_engine(cut)
    async with traced([engine]) as (running, collector):
        await running.post("/v1/completions", BODY | {"stream": True})
        await running.post("/v1/completions", {"model": "unknown", "prompt": "x"})
    first, leg, second = collector.spans
    assert (first.status.code, leg.status.code) == (2, 2)
    assert attributes(first)["http.response.status_code"] == 200
    # A client's mistake is no error of the server.
    assert (second.status.code, attributes(second)["http.response.status_code"]) == (0, 404)


async def test_what_the_client_does_not_sample_is_not_sent(traced: Any, start_engine: Any) -> None:
    engine = await start_engine(answer)
    async with traced([engine]) as (running, collector):
        await running.post("/v1/completions", BODY, traceparent=PARENT[:-2] + "00")
    assert not collector.spans
    told = engine.seen[0].headers["traceparent"].split("-")
    assert told[1] == PARENT.split("-")[1]
    assert (told[2] != PARENT.split("-")[2], told[3]) == (True, "00")


async def test_without_a_collector_the_trace_passes_untouched(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(answer)
    async with start_router([engine]) as running:
        await running.post("/v1/completions", BODY, traceparent="odd", tracestate="a=b")
    assert engine.seen[0].headers["traceparent"] == "odd"
    assert engine.seen[0].headers["tracestate"] == "a=b"


@pytest.mark.parametrize(
    "given",
    [
        "", "x", PARENT.upper(), PARENT[:-1], PARENT + "-00", "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:], PARENT[:36] + "0" * 16 + "-01", PARENT + "\xe9",
    ],
)  # fmt: skip
def test_a_malformed_parent_begins_a_trace(given: str) -> None:
    raw = f"POST / HTTP/1.1\r\nhost: r\r\ntraceparent: {given}\r\n\r\n"
    trace = Trace(parse_head(raw.encode("latin-1")), Random(1))
    assert (trace.parent_id, trace.flags) == (0, 1)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    given = "01" + PARENT[2:] + "-more"
    raw = f"POST / HTTP/1.1\r\nhost: r\r\ntraceparent: {given}\r\n\r\n"
    trace = Trace(parse_head(raw.encode("latin-1")), Random(1))
    assert trace.parent_id == 0xB7AD6B7169203331


def test_a_collector_that_is_not_there_is_told_once_and_delays_nothing() -> None:
    complaints: list[str] = []
    tracing = Tracing("http://127.0.0.1:9", "demo", complaints.append)
    import logging

    for _ in range(50):
        logging.getLogger("opentelemetry.sdk").warning("Queue full, dropping Span.")
    began = time.monotonic()
    tracing.close()
    assert time.monotonic() - began < 4.0
    assert complaints == ["Queue full, dropping Span."]


def test_the_extra_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MachineError, match="otlp_endpoint") as raised:
        Tracing("http://127.0.0.1:9", "demo", print)
    assert "infctl[otel]" in (raised.value.hint or "")
