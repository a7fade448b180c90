"""A router under test, and engines that do exactly what a test scripts."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from infctl import compose
from infctl.core.fleet import Endpoint, State
from infctl.profile.model import Profile
from infctl.router.driver import Router
from infctl.router.server import Server

Script = Callable[["Seen", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Seen:
    """One request as an engine got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Engine:
    """A scripted engine: `script` answers each request; `seen` keeps them all."""

    script: Script
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    lost: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = {
                    k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                seen = Seen(method, target, headers, body)
                self.seen.append(seen)
                await self.script(seen, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            writer.close()


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A complete response with a length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**fields: Any) -> bytes:
    """One SSE event."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@dataclass
class Running:
    """A router with its client port."""

    router: Router
    server: Server
    port: int
    log: io.StringIO

    async def raw(self, data: bytes, wait_s: float = 3.0) -> bytes:
        """Send bytes, half-close nothing, read until the router closes or falls silent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        received = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(wait_s):
                while piece := await reader.read(65536):
                    received += piece
        writer.close()
        return received

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One POST on a connection of its own: status, headers, body (chunks undone)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: r", "Connection: close"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        lines.append(f"Content-Length: {len(data)}")
        raw = await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data, wait_s=10)
        return split(raw)


def split(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one response."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = undo_chunks(body)
    return int(lines[0].split(" ")[1]), headers, body


def undo_chunks(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        out, body = out + rest[:length], rest[length + 2 :]
        if not length:
            break
    return out


StartEngine = Callable[[Script], Awaitable[Engine]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    servers: list[asyncio.Server] = []

    async def start(script: Script) -> Engine:
        engine = Engine(script)
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        servers.append(server)
        engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return engine

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def start_router() -> Any:
    @asynccontextmanager
    async def start(
        engines: list[Engine],
        routing: dict[str, Any] | None = None,
        models: tuple[str, ...] = ("m",),
        kind: str = "openai",
    ) -> AsyncIterator[Running]:
        profile = Profile.model_validate(
            {
                "metadata": {"name": "t"},
                "models": [{"name": "m"}],
                "pools": [{"name": "p"}],
                "routing": routing or {},
            }
        )
        kinds = {name: compose.engine(name) for name in ("vllm", "sglang", "openai")}
        router = Router(compose.pipeline(profile), profile.routing, kinds, seed=1)
        log = io.StringIO()
        router.telemetry.open_log("json", lambda: 0.0, log)
        for index, engine in enumerate(engines):
            endpoint = Endpoint(unit=f"u{index}", url=engine.url, models=models, engine=kind)
            router.join(endpoint, State.READY)
        server = Server(router, profile.routing.limits)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]

        async def sweep() -> None:
            while True:
                await asyncio.sleep(0.05)
                router.sweep()
                router.stalls.check(router.now())
                server.sweep()

        sweeper = asyncio.get_running_loop().create_task(sweep())
        try:
            yield Running(router, server, port, log)
        finally:
            sweeper.cancel()
            listener.close()
            for connection in list(server.connections):
                connection.abort()
            for pool in router.pools.values():
                pool.close()
            await asyncio.sleep(0)

    return start
