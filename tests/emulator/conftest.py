"""An emulated engine in the test's own event loop, and a client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import msgspec
import pytest

from infctl.emulator.api import Api
from infctl.emulator.engine import EmulatedEngine
from infctl.emulator.http import Server
from infctl.emulator.options import EmulatorOptions
from infctl.replica import ReplicaOptions
from infctl.timing import Decode, Prefill, TimingModel

FAST = TimingModel(
    prefill=Prefill(1.0, 0.0, 0.0),
    decode=Decode(0.5, 0.0, 0.0, 0.0),
    kv_capacity_tokens=100_000,
    source="made up",
)
"""1 ms to the first token, half a ms for each further one."""


class Emulator:
    """A running engine: `client` talks to it, `engine` looks inside."""

    def __init__(self, engine: EmulatedEngine, client: httpx.AsyncClient, port: int) -> None:
        self.engine = engine
        self.client = client
        self.port = port

    async def complete(self, **body: Any) -> dict[str, Any]:
        """The JSON of a completion that must succeed."""
        answer = await self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def events(self, path: str, **body: Any) -> list[str]:
        """The data of every event of a streamed answer."""
        answer = await self.client.post(path, json=body | {"stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = answer.text.split("\n\n")
        assert blocks[-1] == ""
        assert all(block.startswith("data: ") for block in blocks[:-1])
        return [block.removeprefix("data: ") for block in blocks[:-1]]

    async def chunks(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events before [DONE], decoded."""
        events = await self.events(path, **body)
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    async def metric(self, name: str) -> float:
        """One series of /metrics by its name and labels as written."""
        text = (await self.client.get("/metrics")).text
        return float(next(x for x in text.splitlines() if x.startswith(name)).rsplit(" ", 1)[1])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to become true, 2 s at most."""
        for _ in range(400):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it never became true")


Start = Callable[..., Awaitable[Emulator]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts emulators from options; all are stopped at the end."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        async def begin(replica: ReplicaOptions | None = None, **options: Any) -> Emulator:
            made = EmulatorOptions(
                model="m",
                timing=options.pop("timing", FAST),
                replica=replica or ReplicaOptions(block_size=4),
            )
            engine = EmulatedEngine(msgspec.structs.replace(made, **options), loop)
            server = Server(Api(engine).handle)
            listener = await loop.create_server(server.connection, "127.0.0.1", 0)
            port = listener.sockets[0].getsockname()[1]
            stack.callback(listener.close)
            stack.callback(engine.close)
            stack.callback(server.close)
            client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5)
            await stack.enter_async_context(client)
            return Emulator(engine, client, port)

        yield begin


@pytest.fixture
async def emulator(start: Start) -> Emulator:
    """A vLLM-like engine."""
    return await start()
