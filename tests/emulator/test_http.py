"""The HTTP server, byte by byte."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from infctl.emulator import http

if TYPE_CHECKING:
    from .conftest import Emulator

BODY = b'{"prompt":"abcd","max_tokens":2,"ignore_eos":true}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


async def talk(emulator: Emulator, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Send pieces, half-close nothing, read until the server closes or is quiet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)
    data = b""
    try:
        while chunk := await asyncio.wait_for(reader.read(65536), 0.2):
            data += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    writer.close()
    return data


def with_length(body: bytes) -> bytes:
    """A whole request."""
    return POST + b"content-length: %d\r\n\r\n" % len(body) + body


async def test_a_request_in_single_bytes(emulator: Emulator) -> None:
    request = with_length(BODY)
    answer = await talk(emulator, *(request[i : i + 1] for i in range(len(request))))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_chunked_request(emulator: Emulator) -> None:
    half = len(BODY) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (BODY[:half], BODY[half:]))
    answer = await talk(
        emulator, POST + b"transfer-encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_pipelined_requests_are_answered_in_order(emulator: Emulator) -> None:
    health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = await talk(emulator, with_length(BODY) + health + with_length(BODY))
    assert [answer.count(x) for x in (b"HTTP/1.1 200", b"text_completion")] == [3, 2]
    assert answer.index(b"content-length: 0") > answer.index(b"text_completion")


async def test_too_many_pipelined_requests_cut_the_connection(emulator: Emulator) -> None:
    answer = await talk(emulator, with_length(BODY) * (http.PIPELINED_MAX + 2))
    assert answer.count(b"HTTP/1.1 200") < http.PIPELINED_MAX + 2


async def test_bodies_of_many_mib(emulator: Emulator) -> None:
    body = b'{"prompt":"' + b"x" * (9 << 20) + b'","max_tokens":1}'
    answer = await emulator.client.post("/v1/completions", content=body)
    assert "maximum context length" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_what_cannot_be_parsed(
    emulator: Emulator, request_bytes: bytes, status: bytes
) -> None:
    answer = await talk(emulator, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in answer


async def test_a_body_beyond_the_limit(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_MAX", 100)
    answer = await talk(emulator, with_length(b"x" * 200))
    assert answer.startswith(b"HTTP/1.1 413")


async def test_expect_continue(emulator: Emulator) -> None:
    head = POST + b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % len(BODY)
    answer = await talk(emulator, head, BODY, pause_s=0.01)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_connection_close_is_honoured(emulator: Emulator) -> None:
    answer = await talk(emulator, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert b"connection: close" in answer


async def test_http_1_0_streams_end_with_the_connection(emulator: Emulator) -> None:
    body = b'{"prompt":"abcd","max_tokens":3,"ignore_eos":true,"stream":true}'
    head = b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    answer = await talk(emulator, head + body)
    assert b"chunked" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")
    assert answer.count(b"data: {") == 3


async def test_connections_are_bounded(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 0)
    assert await talk(emulator, b"GET /health HTTP/1.1\r\n\r\n") == b""
