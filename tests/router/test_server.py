"""The client side: strict HTTP, limits, pipelining, the allow-list."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import pytest

from infctl.router import server

from .conftest import SSE_HEAD, Seen, chunk, event, whole

BODY = b'{"model":"m","prompt":"x"}'


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b"{}"))


def post(*lines: bytes, path: bytes = b"/v1/completions", body: bytes = BODY) -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"Host: r", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"1a\r\n" + BODY + b"\r\n0\r\n\r\n"


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


ATTACKS = {
    "two lengths": post(LENGTH, b"Content-Length: 5"),
    "two equal lengths": post(LENGTH, LENGTH),
    "a list of lengths": post(b"Content-Length: 26, 26"),
    "a signed length": post(b"Content-Length: +26"),
    "a hex length": post(b"Content-Length: 0x1a"),
    "length and chunks": post(LENGTH, b"Transfer-Encoding: chunked", body=CHUNKED),
    "chunked twice over": post(b"Transfer-Encoding: chunked, identity", body=CHUNKED),
    "an odd coding": post(b"Transfer-Encoding: xchunked", body=CHUNKED),
    "a space before the colon": post(b"Content-Length : 26"),
    "a folded header": post(b"X-A: 1\r\n folded", LENGTH),
    "a bare line feed": post(b"X-A: 1\nX-B: 2", LENGTH),
    "a bare carriage return": post(b"X-A: 1\rX-B: 2", LENGTH),
    "a NUL in a value": post(b"X-A: a\x00b", LENGTH),
    "a NUL in a name": post(b"X\x00A: b", LENGTH),
    "no host": b"POST /v1/completions HTTP/1.1\r\n" + LENGTH + b"\r\n\r\n" + BODY,
    "two hosts": post(b"Host: evil", LENGTH),
    "a control byte in the path": post(LENGTH, path=b"/v1/comp\x01letions"),
    "HTTP/2 in clear": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a chunk size that is no number": post(b"Transfer-Encoding: chunked", body=b"zz\r\nab\r\n"),
    "a negative chunk size": post(b"Transfer-Encoding: chunked", body=b"-1\r\nab\r\n"),
    "a chunk longer than it says": post(
        b"Transfer-Encoding: chunked", body=b"1\r\nabc\r\n0\r\n\r\n"
    ),
    "an upgrade": post(b"Connection: Upgrade", b"Upgrade: h2c", LENGTH),
    "a tunnel": b"CONNECT engine:8000 HTTP/1.1\r\nHost: r\r\n\r\n",
    "an empty length": post(b"Content-Length:"),
    "a length with a gap": post(b"Content-Length: 2 6"),
    "a length beyond all bounds": post(b"Content-Length: 99999999999999999999"),
    "an empty coding": post(b"Transfer-Encoding:", body=CHUNKED),
    "two codings": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKED),
    "two coding headers": post(
        b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=CHUNKED
    ),
    "chunks in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CHUNKED,
    "a line feed alone behind a chunk size": chunked(b"1a\n" + BODY + b"\r\n0\r\n\r\n"),
    "a line feed alone behind a chunk": chunked(b"1a\r\n" + BODY + b"\n0\r\n\r\n"),
    "a carriage return alone behind a chunk size": chunked(b"1a\r" + BODY + b"\r\n0\r\n\r\n"),
    "a line feed in a chunk extension": chunked(b"1a;a\n=b\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a quoted line end in a chunk extension": chunked(b'1a;a="\r\n"\r\n' + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size in C": chunked(b"0x1a\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size with a gap": chunked(b" 1a\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size that overflows": chunked(b"1000000000000001a\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an end of chunks by line feeds": chunked(b"1a\r\n" + BODY + b"\r\n0\n\n"),
    "a length in a trailer": chunked(CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n"),
    "a coding in a trailer": chunked(CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"),
    "a header without a colon": post(b"X-A", LENGTH),
    "a header without a name": post(b": b", LENGTH),
    "a space before the first header": b"POST /v1/completions HTTP/1.1\r\n Host: r\r\n\r\n",
    "a NUL in the path": post(LENGTH, path=b"/v1/completions\x00"),
    "a space in the path": post(LENGTH, path=b"/v1/ completions"),
    "another protocol": b"POST /v1/completions RTSP/1.0\r\nHost: r\r\n"
    + LENGTH
    + b"\r\n\r\n"
    + BODY,
    "no protocol": b"POST /v1/completions\r\nHost: r\r\n\r\n",
    "a byte of another alphabet in a name": post(b"X\xff: a", LENGTH),
    "lines ended by two carriage returns": post(b"X-A: a\r", LENGTH),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_smuggling_is_refused_and_the_connection_closed(
    attack: bytes, start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        raw = await running.raw(attack + post(LENGTH), wait_s=1.0)
        assert not running.router.exchanges
    assert raw.startswith((b"HTTP/1.1 400", b"HTTP/1.1 505"))
    assert len(re.findall(rb"HTTP/1\.1 \d{3}", raw)) == 1
    assert not engine.seen


FORBIDDEN = [
    b"/sleep", b"//sleep", b"/v1/../sleep", b"/%73leep", b"/sleep?level=1", b"/wake_up", b"/pause",
    b"/resume", b"/abort_requests", b"/abort_request", b"/collective_rpc", b"/reset_prefix_cache",
    b"/flush_cache", b"/v1/load_lora_adapter", b"/release_memory_occupation", b"/update_weights",
    b"/server_info", b"/v1/completions/", b"/v1//completions", b"/V1/completions", b"/fault", b"/",
    b"/v1/completions/../../sleep", b"http://other/v1/completions", b"/v1/completions%2f..%2fsleep",
    b"/v1/completions#x",
]  # fmt: skip


@pytest.mark.parametrize("path", FORBIDDEN)
async def test_nothing_outside_the_allow_list_reaches_an_engine(
    path: bytes, start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        raw = await running.raw(post(LENGTH, b"Connection: close", path=path), wait_s=1.0)
        assert running.router.telemetry.unknown_paths == 1
    assert raw.startswith(b"HTTP/1.1 404")
    assert not engine.seen


async def test_the_allow_list_can_be_extended(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine], {"extra_paths": ["/v2/own"]}) as running:
        status, _, _ = await running.post("/v2/own", {"model": "m"})
    assert (status, engine.seen[0].target) == (200, "/v2/own")


@pytest.mark.parametrize("piece", [1, 3, 50])
@pytest.mark.parametrize("chunked", [False, True])
async def test_any_split_of_a_request_is_the_same_request(
    piece: int, chunked: bool, start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    data = post(b"Transfer-Encoding: chunked", body=CHUNKED) if chunked else post(LENGTH)
    async with start_router([engine]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for at in range(0, len(data), piece):
            writer.write(data[at : at + piece])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert engine.seen[0].body == BODY


async def test_pipelined_requests_are_answered_in_order(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    one = b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n"
    async with start_router([engine]) as running:
        last = post(LENGTH, b"Connection: close")
        raw = await running.raw((post(LENGTH) + one) * 400 + last, wait_s=10.0)
    assert raw.count(b"HTTP/1.1 200") == 801
    assert len(engine.seen) == 401


async def test_a_request_behind_a_chunked_one_is_not_read_from_its_tail(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    data = post(b"Transfer-Encoding: chunked", body=CHUNKED) + post(LENGTH, path=b"/v1/embeddings")
    async with start_router([engine]) as running:
        raw = await running.raw(data, wait_s=1.0)
    assert raw.count(b"HTTP/1.1 ") == 1
    assert [s.target for s in engine.seen] == ["/v1/completions"]


async def test_limits_are_answered_with_their_status(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    limits = {"body_mib_max": 1, "headers_kib_max": 2, "connections_max": 2}
    async with start_router([engine], {"limits": limits}) as running:
        too_long = await running.raw(post(b"Content-Length: 2000000"), wait_s=1.0)
        chunks = post(b"Transfer-Encoding: chunked", body=b"200000\r\n" + b"x" * 0x200000)
        too_many_chunks = await running.raw(chunks, wait_s=1.0)
        wide = await running.raw(post(b"X-A: " + b"a" * 3000, LENGTH), wait_s=1.0)
        held = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        crowded = await running.raw(post(LENGTH), wait_s=1.0)
        assert dict(running.router.telemetry.refused) == {413: 2, 431: 1, 503: 1}
        for _, writer in held:
            writer.close()
    answers = (too_long, too_many_chunks, wide, crowded)
    assert [raw.split(b" ")[1] for raw in answers] == [b"413", b"413", b"431", b"503"]


async def test_slow_clients_are_dropped(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    limits = {"header_s": 0.3, "body_s": 0.3, "idle_s": 0.3}
    async with start_router([engine], {"limits": limits}) as running:

        async def drip() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            answer = asyncio.ensure_future(reader.read(100))
            for byte in post(LENGTH):
                if answer.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            return await answer

        idle = running.raw(b"", wait_s=2.0)
        no_body = running.raw(post(LENGTH, body=b"{"), wait_s=2.0)
        slow, nothing, half = await asyncio.gather(drip(), idle, no_body)
    assert slow.startswith(b"HTTP/1.1 408")
    assert nothing == b""
    assert half.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"model": 5}',
        b"[" * 100_000,
        b'{"model":"m"}x',
    ],
)
async def test_bad_json_is_a_400(body: bytes, start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        status, _, answer = await running.post("/v1/chat/completions", body)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "BadRequestError"
    assert not engine.seen


async def test_own_pages(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        await running.post("/v1/completions", BODY)
        get = b"GET %s HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n"
        models = await running.raw(get % b"/v1/models")
        metrics = await running.raw(get % b"/metrics")
        head = await running.raw(b"HEAD /health HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n")
        wrong = await running.raw(get % b"/v1/completions")
    assert json.loads(models.partition(b"\r\n\r\n")[2])["data"][0]["id"] == "m"
    assert b'infctl_requests_total{endpoint="u0",pool="",status="200"} 1.0' in metrics
    assert head.startswith(b"HTTP/1.1 200")
    assert wrong.startswith(b"HTTP/1.1 405")
    async with start_router([]) as running:
        for path in (b"/health", b"/v1/models"):
            assert (await running.raw(get % path)).startswith(b"HTTP/1.1 503")


async def test_a_bug_is_a_500_and_a_log_line(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        running.router.intake.read = None
        raw = await running.raw(post(LENGTH))
        running.router.telemetry.flush()
    assert raw.startswith(b"HTTP/1.1 500")
    assert "TypeError" in running.log.getvalue()


async def test_a_claimed_length_takes_no_memory_until_its_bytes_come(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    body = json.dumps({"model": "m", "prompt": "x" * 300_000}).encode()
    async with start_router([engine]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body[:10])
        await asyncio.sleep(0.05)
        (connection,) = running.server.connections
        assert len(connection.get_buffer(-1)) < 65536
        writer.write(body[10:])
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert engine.seen[0].body == body


async def test_a_client_that_does_not_read_cannot_pile_up_answers(start_router: Any) -> None:
    async with start_router([], {"limits": {"idle_s": 0.2}}) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n" * 20_000)
        await asyncio.sleep(0.3)
        (connection,) = running.server.connections
        assert connection.transport.get_write_buffer_size() < 1 << 20
        async with asyncio.timeout(3):
            while running.server.connections:  # and does not stay for ever
                await asyncio.sleep(0.02)
        writer.transport.abort()


async def test_answers_to_head_have_no_body(start_router: Any) -> None:
    async with start_router([]) as running:
        raw = await running.raw(
            b"HEAD /nothing HTTP/1.1\r\nHost: r\r\n\r\n"
            b"HEAD /v1/completions HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n"
        )
    assert [part[:12] for part in raw.split(b"\r\n\r\n")] == [b"HTTP/1.1 404", b"HTTP/1.1 405", b""]


async def test_draining_answers_what_has_begun_to_arrive_and_says_close(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        streams = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(4)]
        request = post(LENGTH)
        for (_, writer), size in zip(streams, (0, 10, len(request) - 5, 0), strict=True):
            writer.write(request[:size])
        await asyncio.sleep(0.05)
        running.server.drain(0.1)
        assert running.server.working
        for (_, writer), size in zip(streams[1:3], (10, len(request) - 5), strict=True):
            writer.write(request[size:])
        answers = [await reader.read() for reader, _ in streams]
        assert answers[0] == answers[3] == b""
        for answer in answers[1:3]:
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer
        await asyncio.sleep(0.05)
        assert not running.server.working
        for _, writer in streams:
            writer.close()


async def test_an_idle_connection_is_told_to_close_by_an_answer(
    start_engine: Any, start_router: Any
) -> None:
    """A request may be on its way when the drain begins: closing at once would lose it."""
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        idle, other = await asyncio.open_connection("127.0.0.1", running.port)
        await asyncio.sleep(0.05)
        running.server.drain(0.5)
        await asyncio.sleep(0.2)
        writer.write(post(LENGTH))
        answer = await asyncio.wait_for(reader.read(), 1.0)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert running.server.working
        assert await asyncio.wait_for(idle.read(), 2.0) == b""
        await asyncio.sleep(0.05)
        assert not running.server.working
        writer.close()
        other.close()


async def test_a_stream_that_promised_to_keep_its_connection_keeps_it_for_a_while(
    start_engine: Any, start_router: Any
) -> None:
    gate = asyncio.Event()

    async def slow(seen: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(n=1)))
        await writer.drain()
        await gate.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with start_router([await start_engine(slow)]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(post(LENGTH))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" not in head
        running.server.drain(0.4)
        gate.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(post(LENGTH))  # it may believe that it can
        answer = await asyncio.wait_for(reader.read(), 1.0)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        writer.close()


async def test_a_request_that_is_here_already_outlives_the_deadline(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await asyncio.sleep(0.05)
        running.server.drain(0.0)
        writer.write(post(LENGTH))
        time.sleep(0.02)  # noqa: ASYNC251 (the kernel has it; the loop has not looked)
        running.server.sweep()
        assert (await asyncio.wait_for(reader.read(), 1.0)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_trailers_are_not_headers(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    trailers = b"Authorization: Bearer x\r\nX-Request-Id: mine\r\nX-Own: 1\r\nHost: evil\r\n\r\n"
    async with start_router([engine]) as running:
        raw = await running.raw(chunked(CHUNKED[:-2] + trailers), wait_s=0.5)
    assert raw.startswith(b"HTTP/1.1 200")
    assert not {"authorization", "x-own"} & set(engine.seen[0].headers)
    assert engine.seen[0].headers["x-request-id"] != "mine"


async def test_chunk_extensions_end_here(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        await running.raw(chunked(b'1a;a="b c";d\r\n' + BODY + b"\r\n0\r\n\r\n"), wait_s=0.5)
    assert (engine.seen[0].body, engine.seen[0].headers["content-length"]) == (BODY, "26")


async def test_many_tiny_chunks_take_the_memory_of_their_bytes(start_router: Any) -> None:
    async with start_router([]) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        pieces = b"2\r\n  \r\n" * 50_000
        writer.write(chunked(pieces))
        await writer.drain()
        await asyncio.sleep(0.2)
        (connection,) = running.server.connections
        assert len(connection._head.body) == 100_000
        assert sys.getsizeof(connection._head.body) < 200_000
        writer.close()


async def test_headers_named_by_connection_go_no_further(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        named = (b"Connection: X-Hop, close", b"X-Hop: 1", b"X-End: 2", b"Connection: x-two")
        await running.raw(post(*named, b"X-Two: 3", LENGTH))
        await running.raw(post(b"Connection: close", b"X-Hop: 1", LENGTH))
    first, second = (seen.headers for seen in engine.seen)
    assert not {"x-hop", "x-two", "connection"} & set(first)
    assert (first["x-end"], second["x-hop"]) == ("2", "1")


async def test_heads_have_bounds_in_every_direction(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        long = await running.raw(post(LENGTH, path=b"/v1/completions?" + b"x" * 8192), wait_s=1.0)
        many = await running.raw(post(*[b"A: 1"] * 129, LENGTH), wait_s=1.0)
        fits = await running.raw(post(*[b"A: 1"] * 100, LENGTH, b"Connection: close"))
    assert [raw[9:12] for raw in (long, many, fits)] == [b"414", b"431", b"200"]
    assert len(engine.seen) == 1


async def test_only_a_continue_can_be_expected(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(post(LENGTH, b"Expect: 100-Continue", body=b""))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        odd = await running.raw(post(LENGTH, b"Expect: a-miracle", body=b""), wait_s=1.0)
        large = post(b"Content-Length: 99999999", b"Expect: 100-continue", body=b"")
        too_large = await running.raw(large, wait_s=1.0)
    assert odd.startswith(b"HTTP/1.1 417")
    assert too_large.startswith(b"HTTP/1.1 413")


# --- lingering ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (post(b"Content-Length: 8000000", body=b""), 413),
        (post(b"X-A: " + b"a" * 5000, body=b""), 431),
        (post(b"Content-Length: +5", body=b""), 400),
        (chunked(b"zz\r\n"), 400),
    ],
)
async def test_a_client_that_still_sends_gets_to_read_why_it_is_refused(
    head: bytes, status: int, start_router: Any
) -> None:
    """Without lingering, the reset that unread bytes cause overtakes the answer."""
    limits = {"body_mib_max": 1, "headers_kib_max": 2}
    async with start_router([], {"limits": limits}) as running:

        def client() -> bytes:
            with socket.create_connection(("127.0.0.1", running.port), timeout=5) as sock:
                sock.sendall(head)
                time.sleep(0.05)  # the refusal is on its way, and the client does not know
                sock.sendall(b"x" * 8_000_000)
                time.sleep(0.05)
                received = b""
                while piece := sock.recv(65536):
                    received += piece
                return received

        raw = await asyncio.to_thread(client)
        await asyncio.sleep(0.05)
        assert not running.server.lingering
    assert raw.startswith(b"HTTP/1.1 %d" % status)
    assert b"connection: close" in raw


async def test_lingering_is_bounded_in_time_bytes_and_number(
    start_router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LINGER_S", 0.3)
    monkeypatch.setattr(server, "_LINGER_BYTES", 1 << 20)
    monkeypatch.setattr(server, "_LINGERING_MAX", 3)
    bad = post(b"Content-Length: +5")
    limits = {"connections_max": 2}
    async with start_router([], {"limits": limits}) as running:
        held = []
        for _ in range(6):
            held.append(await asyncio.open_connection("127.0.0.1", running.port))
            held[-1][1].write(bad)
            await asyncio.sleep(0.02)
        assert len(running.server.lingering) == 3
        assert not running.server.connections  # who lingers takes no other client's place
        assert not running.server.working
        assert (await running.raw(post(LENGTH, b"Connection: close"))).startswith(b"HTTP/1.1 503")
        writer = held[0][1]
        sent = 0
        with suppress(ConnectionError):
            while sent < 64 << 20:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        assert sent < 64 << 20
        async with asyncio.timeout(2):
            while running.server.lingering:
                await asyncio.sleep(0.02)
        for _, writer in held:
            writer.close()


async def test_too_many_clients_are_told_so(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine], {"limits": {"connections_max": 1}}) as running:
        held = await asyncio.open_connection("127.0.0.1", running.port)
        await asyncio.sleep(0.02)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(post(LENGTH))  # it has sent its request before it can know
        raw = await reader.read()
        assert raw.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in raw
        for _, each in (held, (reader, writer)):
            each.close()
    assert not engine.seen
