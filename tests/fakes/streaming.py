"""A small OpenAI-like streaming server in a thread, with the faults a client must survive."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

JSON_HEAD = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


@dataclass
class Server:
    """What to answer; tests change it before they send."""

    port: int = 0
    context_tokens: int | None = 32_768
    bytes_per_token: int = 4
    first_s: float = 0.01
    gap_s: float = 0.0
    status: int = 200
    models_status: int = 200
    mode: str = ""  # cut | error-event | reset | close-idle | stall
    bodies: list[dict] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send_json(self, writer: asyncio.StreamWriter, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        writer.write(JSON_HEAD % (status, len(data)) + data)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self.answer(reader, writer):
                await writer.drain()
        writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"GET /v1/models" in head:
            row = {"id": "tiny"}
            if self.context_tokens:
                row["max_model_len"] = self.context_tokens
            self.send_json(writer, {"data": [row]}, self.models_status)
            return True
        size = int(re.search(rb"Content-Length: (\d+)", head).group(1))
        body = json.loads(await reader.readexactly(size))
        self.bodies.append(body)
        if self.status != 200:
            self.send_json(writer, {"error": {"message": "no room"}}, self.status)
            return True
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        usage = {
            "prompt_tokens": len(text) // self.bytes_per_token,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": len(text) // self.bytes_per_token // 4},
        }
        if not body.get("stream"):
            self.send_json(writer, {"choices": [{"text": "x"}], "usage": usage})
            return True
        return await self.stream(writer, body, usage)

    async def stream(self, writer: asyncio.StreamWriter, body: dict, usage: dict) -> bool:
        if self.mode == "reset":
            writer.transport.abort()
            return False
        await asyncio.sleep(self.first_s)
        number = len(self.bodies) % 2
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"x-infctl-endpoint: e%d\r\ntransfer-encoding: chunked\r\n\r\n" % number
        )
        if "messages" in body:
            self.event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for index in range(0 if self.mode == "empty" else body["max_tokens"]):
            if self.mode == "stall" and index == 1:
                await asyncio.sleep(60)
            if index and self.gap_s:
                await asyncio.sleep(self.gap_s)
            choice = {"delta": {"content": "a"}} if "messages" in body else {"text": "a"}
            self.event(writer, {"choices": [choice]})
        if self.mode == "cut":
            return False
        if self.mode == "error-event":
            self.event(writer, {"error": {"message": "engine died"}})
        if self.mode != "empty":
            self.event(writer, {"choices": [], "usage": usage})
        self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return self.mode != "close-idle"

    def event(self, writer: asyncio.StreamWriter, value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        data = b"data: " + text.encode() + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@pytest.fixture
def server() -> Iterator[Server]:
    fake = Server()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        listening = await asyncio.start_server(fake.handle, "127.0.0.1", 0, limit=1 << 24)
        fake.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(5)
    yield fake
    loop.call_soon_threadsafe(stop.set)
    thread.join(5)
    loop.close()
