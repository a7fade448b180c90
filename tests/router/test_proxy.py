"""What the router passes on, what it takes over, and what it never lets look complete."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from infctl.router.server import Connection
from infctl.router.usage import parse_usage

from .conftest import SSE_HEAD, Engine, Seen, chunk, event, whole

COMPLETION = {"model": "m", "prompt": "hello world", "max_tokens": 4}


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b'{"choices": [], "usage": {"prompt_tokens": 3}}'))


def failing(status: str) -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", status))

    return script


async def hangup(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.close()


def streaming(*pieces: bytes, pause_s: float = 0.0) -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return script


async def test_json_passes_byte_for_byte(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        body = b'{"model":"m",  "prompt" : "h\\u00e9",\n "unknown": [1.50, 1e3]}'
        status, headers, answer = await running.post(
            "/v1/completions?x=1", body, X_Request_Id="abc"
        )
    assert (status, answer) == (200, b'{"choices": [], "usage": {"prompt_tokens": 3}}')
    assert engine.seen[0].body == body
    assert engine.seen[0].target == "/v1/completions?x=1"
    assert engine.seen[0].headers["x-request-id"] == headers["x-request-id"] == "abc"
    assert headers["x-infctl-endpoint"] == "u0"


async def test_hop_by_hop_and_router_owned_headers_stay_here(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        await running.post(
            "/v1/completions", COMPLETION, TE="trailers", X_Data_Parallel_Rank="7", X_Own="1"
        )
    got = engine.seen[0].headers
    assert got["x-own"] == "1"
    assert not {"te", "connection", "x-data-parallel-rank"} & set(got)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}',
        b'{"model":"m","prompt":"x","kv_transfer\\u005fparams":{"do_remote_prefill":true}}',
        b'{"kv_transfer_params":1,"model":"m","prompt":"x","kv_transfer_params":2}',
        b'{"model":"m","prompt":"x","bootstrap_host":"evil","bootstrap_room":1}',
    ],
)
async def test_router_owned_fields_never_reach_an_engine(
    body: bytes, start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        status, _, _ = await running.post("/v1/completions", body)
    assert status == 200
    assert json.loads(engine.seen[0].body) == {"model": "m", "prompt": "x"}


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_a_stream_passes_under_any_chunking(
    cut: int, start_engine: Any, start_router: Any
) -> None:
    events = event(n=1) + event(n=2) + event(usage={"prompt_tokens": 9}) + b"data: [DONE]\n\n"
    pieces = [events[i : i + cut] for i in range(0, len(events), cut)]
    engine = await start_engine(streaming(*[chunk(p) for p in pieces], b"0\r\n\r\n"))
    async with start_router([engine]) as running:
        status, _, answer = await running.post("/v1/completions", COMPLETION | {"stream": True})
        assert running.router.telemetry.stats("u0").statuses[200] == 1
        logged = running.router.telemetry.flush() or running.log.getvalue()
    assert (status, answer) == (200, events)
    assert json.loads(logged.splitlines()[-1])["prompt_tokens"] == 9


@pytest.mark.parametrize("failure", [hangup, failing("500 Oops"), failing("503 Busy")])
async def test_another_endpoint_takes_over_before_the_first_byte(
    failure: Any, start_engine: Any, start_router: Any
) -> None:
    bad, good = await start_engine(failure), await start_engine(echo)
    async with start_router([bad, good], {"picker": "round-robin"}) as running:
        for _ in range(4):
            status, headers, _ = await running.post(
                "/v1/completions", COMPLETION, X_Request_Id="same"
            )
            assert (status, headers["x-infctl-endpoint"]) == (200, "u1")
        assert running.router.telemetry.retries >= 2
        assert not running.router.exchanges
        assert float(running.router.director.fleet.inflight.sum()) == 0.0
    assert {s.headers["x-request-id"] for s in bad.seen + good.seen} == {"same"}


async def test_a_refused_connection_ejects_and_retries(
    start_engine: Any, start_router: Any
) -> None:
    good, gone = await start_engine(echo), await start_engine(echo)
    gone.url = "http://127.0.0.1:9"
    async with start_router([gone, good], {"picker": "round-robin"}) as running:
        answers = [await running.post("/v1/completions", COMPLETION) for _ in range(3)]
        assert [a[0] for a in answers] == [200, 200, 200]
        assert list(running.router.director.fleet.ready) == [False, True]


async def test_every_endpoint_failing_is_a_502_that_says_why(
    start_engine: Any, start_router: Any
) -> None:
    engines = [await start_engine(failing("500 Oops")) for _ in range(2)]
    async with start_router(engines) as running:
        status, _, answer = await running.post("/v1/completions", COMPLETION)
    assert status == 502
    assert "answered 500" in json.loads(answer)["error"]["message"]
    assert sum(len(e.seen) for e in engines) == 3


async def test_a_policy_that_raises_costs_its_request_alone(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        scorers = running.router.director.pipeline.scorers
        running.router.director.pipeline.scorers = (
            msgspec.structs.replace(scorers[0], scorer=None),
        )
        status, headers, answer = await running.post(
            "/v1/completions", COMPLETION, X_Request_Id="mine"
        )
        assert (status, headers["x-request-id"]) == (500, "mine")
        assert json.loads(answer)["error"]["type"] == "InternalServerError"
        running.router.director.pipeline.scorers = scorers
        assert (await running.post("/v1/completions", COMPLETION))[0] == 200
        running.router.telemetry.flush()
        assert "AttributeError" in running.log.getvalue()
        assert float(running.router.director.fleet.inflight.sum()) == 0.0


async def test_client_errors_pass_and_are_not_retried(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(failing("400 Bad Request"))
    async with start_router([engine]) as running:
        status, _, _ = await running.post("/v1/completions", COMPLETION)
        assert len(running.router.director.index) == 0
    assert (status, len(engine.seen)) == (400, 1)


async def test_a_stream_that_breaks_ends_with_an_error_event(
    start_engine: Any, start_router: Any
) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(n=1)))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    engine = await start_engine(script)
    async with start_router([engine]) as running:
        status, _, answer = await running.post("/v1/completions", COMPLETION | {"stream": True})
    assert status == 200
    first, error = answer.strip().split(b"\n\n")
    assert first == b'data: {"n": 1}'
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 502


async def test_a_stream_cut_inside_an_event_never_looks_complete(
    start_engine: Any, start_router: Any
) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"40\r\ndata: {half")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    engine = await start_engine(script)
    async with start_router([engine]) as running:
        raw = await running.raw(
            b"POST /v1/responses HTTP/1.1\r\nHost: r\r\nContent-Length: 45\r\n\r\n"
            b'{"model":"m","input":"xxxxxx","stream": true}'
        )
    assert raw.endswith(b"data: {half")


async def test_a_client_that_leaves_frees_its_endpoint(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(streaming(*[chunk(event(n=i)) for i in range(100)], pause_s=0.02))
    async with start_router([engine]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = json.dumps(COMPLETION | {"stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await reader.readuntil(b"data:")
        assert float(running.router.director.fleet.inflight[0]) == 1.0
        writer.close()
        async with asyncio.timeout(2):
            while running.router.exchanges or not engine.lost:
                await asyncio.sleep(0.01)
        assert float(running.router.director.fleet.inflight[0]) == 0.0


async def test_a_silent_stream_is_cut_and_a_silent_endpoint_is_left(
    start_engine: Any, start_router: Any
) -> None:
    async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    engines = [await start_engine(silent), await start_engine(echo)]
    routing = {"picker": "round-robin", "limits": {"first_byte_s": 0.2, "stream_idle_s": 0.2}}
    async with start_router(engines, routing) as running:
        statuses = [(await running.post("/v1/completions", COMPLETION))[0] for _ in range(2)]
        assert statuses == [200, 200]
    engine = await start_engine(streaming(chunk(event(n=1)), pause_s=30))
    async with start_router([engine], routing) as running:
        _, _, answer = await running.post("/v1/completions", COMPLETION | {"stream": True})
    assert b"fell silent for 0.2 s" in answer


async def test_large_bodies_pass_whole(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    body = json.dumps(COMPLETION | {"prompt": "long context " * 700_000}).encode()
    async with start_router([engine]) as running:
        status, _, _ = await running.post("/v1/completions", body)
    assert len(body) > 8 << 20
    assert (status, engine.seen[0].body == body) == (200, True)


async def test_http_1_0_clients_get_a_length(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(streaming(chunk(b"abc"), chunk(b"def"), b"0\r\n\r\n"))
    async with start_router([engine]) as running:
        raw = await running.raw(
            b"POST /v1/completions HTTP/1.0\r\nContent-Length: 27\r\n\r\n"
            b'{"model":"m","prompt":"xy"}'
        )
    assert b"content-length: 6\r\n" in raw
    assert raw.endswith(b"\r\n\r\nabcdef")


async def test_garbage_from_an_engine_is_a_failure_not_an_answer(
    start_engine: Any, start_router: Any
) -> None:
    async def garbage(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01 not http at all\r\n\r\n")

    engines = [await start_engine(garbage)]
    async with start_router(engines) as running:
        status, _, answer = await running.post("/v1/completions", COMPLETION)
    assert status == 502
    assert b"malformed HTTP response" in answer


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b'data: {"usage":{"prompt_tokens":5,"completion_tokens":2}}', (5, 2, None)),
        (b'"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}', (5, None, 4)),
        (b'"usage":{"input_tokens":5,"output_tokens":1,"x":{"y":{}}}', (5, 1, None)),
        (b'"usage":{"prompt_\r\n1f\r\ntokens":5}', (5, None, None)),
        (b'{"text": "say \\"usage\\": {1}"}', None),
        (b'"usage":null', None),
        (b'"usage":{"prompt_tokens":', None),
    ],
)
def test_usage_is_found_in_the_tail(tail: bytes, expected: tuple[Any, ...] | None) -> None:
    usage = parse_usage(tail)
    found = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if usage else None
    assert found == expected


async def test_a_retry_for_http_1_0_forgets_what_the_first_endpoint_sent(
    start_engine: Any, start_router: Any
) -> None:
    async def breaks_off(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"old"))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()

    async def answers(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"new"))

    engines = [await start_engine(breaks_off), await start_engine(answers)]
    async with start_router(engines, {"picker": "round-robin"}) as running:
        raws = [
            await running.raw(
                b"POST /v1/completions HTTP/1.0\r\nContent-Length: 27\r\n\r\n"
                b'{"model":"m","prompt":"xy"}'
            )
            for _ in range(2)
        ]
    assert [raw.partition(b"\r\n\r\n")[2] for raw in raws] == [b"new", b"new"]
    assert engines[0].seen


async def test_bytes_behind_an_answer_never_reach_a_client(
    start_engine: Any, start_router: Any
) -> None:
    async def two_answers(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"one") + whole(b"two"))

    engine = await start_engine(two_answers)
    async with start_router([engine]) as running:
        status, _, body = await running.post("/v1/completions", COMPLETION)
    assert status == 502
    assert b"bytes after the end of a response" in body


async def test_any_number_of_interim_answers_is_passed_over(
    start_engine: Any, start_router: Any
) -> None:
    async def hints(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3000 + whole(b"{}"))

    engine = await start_engine(hints)
    async with start_router([engine]) as running:
        status, _, body = await running.post("/v1/completions", COMPLETION)
    assert (status, body) == (200, b"{}")


async def test_a_connection_with_half_a_request_in_it_is_not_used_again(
    start_engine: Any, start_router: Any
) -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(whole(b"{}", "413 Content Too Large"))
            await asyncio.sleep(30)

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    engine = Engine(echo, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with start_router([engine]) as running:
        body = json.dumps(COMPLETION | {"prompt": "x" * 12_000_000}).encode()
        status, _, _ = await running.post("/v1/completions", body)
        assert status == 413
        assert running.router.pools[0].take() is None
    server.close()


async def test_a_kept_connection_reads_though_its_last_client_did_not(
    start_engine: Any, start_router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Connection.write

    def write_and_fill(connection: Connection, data: bytes) -> None:
        write(connection, data)
        connection.pause_writing()  # as a transport does when its buffer is full
        asyncio.get_running_loop().call_soon(connection.resume_writing)

    monkeypatch.setattr(Connection, "write", write_and_fill)
    engine = await start_engine(echo)
    async with start_router([engine], {"limits": {"first_byte_s": 0.5}}) as running:
        statuses = [(await running.post("/v1/completions", COMPLETION))[0] for _ in range(3)]
    assert statuses == [200, 200, 200]
    assert len(engine.seen) == 3


async def test_a_client_that_stops_reading_gives_its_endpoint_back(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(streaming(*[chunk(b"data: " + b"y" * 500_000)] * 100))
    async with start_router([engine], {"limits": {"stream_idle_s": 0.2}}) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1)
        body = json.dumps(COMPLETION | {"stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        async with asyncio.timeout(3):
            while not engine.seen or running.router.exchanges:
                await asyncio.sleep(0.02)
        assert float(running.router.director.fleet.inflight[0]) == 0.0
        writer.transport.abort()
