import asyncio

import pytest

from infctl.client.exchange import Exchange
from infctl.client.http import Pool, Target
from infctl.errors import UsageError


def test_targets() -> None:
    target = Target("http://h:81/base/v1/", {"X-A": "b"})
    head = target.post("/v1/completions", b"{}").decode()
    assert head.startswith("POST /base/v1/completions HTTP/1.1\r\nHost: h:81\r\n")
    assert "X-A: b\r\n" in head
    assert head.endswith("Content-Length: 2\r\n\r\n{}")
    assert Target("127.0.0.1:9", {}).port == 9
    assert Target("https://h", {}).port == 443
    assert b"Host: [::1]:80" in Target("http://[::1]", {}).get("/")


@pytest.mark.parametrize("url", ["ftp://h", "http://", "file:///etc/passwd"])
def test_what_is_no_target(url: str) -> None:
    with pytest.raises(UsageError):
        Target(url, {})


def test_headers_hold_no_line_break() -> None:
    with pytest.raises(UsageError, match="line break"):
        Target("http://h", {"A": "x\r\nEvil: y"})


async def completions(pool: Pool, count: int) -> list[Exchange]:
    body = b'{"prompt":"aaaa","max_tokens":3,"stream":true}'
    payload = pool.target.post("/v1/completions", body)
    return await asyncio.gather(*(pool.fetch(payload, 5.0) for _ in range(count)))


async def test_connections_are_bounded_and_kept(server) -> None:
    pool = Pool(Target(server.url, {}), connections_max=2)
    first = await completions(pool, 6)
    await completions(pool, 2)
    assert [e.error for e in first] == [""] * 6
    assert first[0].endpoint in {"e0", "e1"}
    assert (server.connections, pool.peak) == (2, 2)
    pool.close()


async def test_a_connection_closed_while_idle_is_replaced(server) -> None:
    server.mode = "close-idle"
    pool = Pool(Target(server.url, {}), connections_max=4)
    for _ in range(3):
        assert [e.error for e in await completions(pool, 1)] == [""]
    assert server.connections == 3


async def test_faults_become_errors(server) -> None:
    pool = Pool(Target(server.url, {}), connections_max=4)
    for mode, error in (("cut", "cut off"), ("error-event", "error event"), ("reset", "disconn")):
        server.mode = mode
        assert error in (await completions(pool, 1))[0].error


async def test_nobody_listens() -> None:
    pool = Pool(Target("http://127.0.0.1:1", {}), 1)
    assert "cannot connect" in (await completions(pool, 1))[0].error


async def serve(data: bytes) -> tuple[asyncio.Server, Pool]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    return listening, Pool(Target(f"http://127.0.0.1:{port}", {}), 1)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", "64 KiB"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort", "cut off"),
        (b"", "disconnected"),
    ],
)
async def test_broken_servers(data: bytes, error: str) -> None:
    listening, pool = await serve(data)
    async with listening:
        exchange = await pool.fetch(pool.target.get("/"), 5.0)
    assert error in exchange.error


async def test_a_stream_may_end_with_the_connection() -> None:
    events = b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
    listening, pool = await serve(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events
    )
    async with listening:
        exchange = await pool.fetch(pool.target.get("/"), 5.0)
    assert exchange.error == ""
    assert exchange.first_s > 0


async def test_a_timeout_ends_a_fetch(server) -> None:
    server.first_s = 30.0
    pool = Pool(Target(server.url, {}), 1)
    payload = pool.target.post("/v1/completions", b'{"prompt":"a","max_tokens":1,"stream":true}')
    assert (await pool.fetch(payload, 0.05)).error == "timeout"
    pool.close()
