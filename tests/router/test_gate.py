"""The admin API behind its token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from infctl.profile.model import Limits
from infctl.router.admin import Admin
from infctl.router.gate import Gate, digest
from infctl.router.server import Server

from .conftest import Running, split

TOKEN = "0123456789abcdef0123456789abcdef"


async def ask(running: Running, *headers: str, length: int = 0) -> tuple[int, bytes]:
    async def reload() -> tuple[int, Any]:
        return 200, {}

    gate = Gate(Admin(running.router, list, reload))
    gate.expected = digest(TOKEN.encode())
    server = Server(gate, Limits())
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ["POST /v1/profile HTTP/1.1" if length else "GET /v1/fleet HTTP/1.1", "Host: a"]
    lines += ["Connection: close", f"Content-Length: {length}", *headers]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    status, _, body = split(await reader.read())
    writer.close()
    listener.close()
    return status, body


@pytest.mark.parametrize(
    "header",
    [
        "X-None: x",
        f"Authorization: Bearer {TOKEN}x",
        f"Authorization: Bearer {TOKEN[:-1]}",
        f"Authorization: Basic {TOKEN}",
        f"Authorization: {TOKEN}",
        "Authorization: Bearer ",
        f"X-Api-Key: {TOKEN}",
        f"Cookie: {TOKEN}",
    ],
)
async def test_without_the_token_nothing_is_told(header: str, start_router: Any) -> None:
    async with start_router([]) as running:
        status, body = await ask(running, header)
        assert (await ask(running, header, length=1_000_000))[0] == 401  # no body awaited
        running.router.telemetry.flush()
    assert status == 401
    assert TOKEN not in body.decode()
    assert TOKEN not in running.log.getvalue()


async def test_with_it_everything_is_as_on_the_socket(start_router: Any) -> None:
    async with start_router([]) as running:
        status, body = await ask(running, f"Authorization: bearer {TOKEN}")
    assert (status, b"endpoints" in body) == (200, True)


async def test_before_a_token_is_set_nobody_gets_in(start_router: Any) -> None:
    async def reload() -> tuple[int, Any]:
        return 200, {}

    from infctl.router.wire import parse_head

    async with start_router([]) as running:
        gate = Gate(Admin(running.router, list, reload))
        for value in ("", "Bearer ", "Bearer x"):
            head = f"GET /v1/fleet HTTP/1.1\r\nHost: a\r\nAuthorization: {value}\r\n\r\n"
            assert gate.on_head(parse_head(head.encode())) is not None
