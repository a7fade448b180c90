"""Mock engines for the router benchmark: several ports in one process, answers ready-made.

As little work as possible, so that what is measured is the router. Who asks for token ids and
usage, as vLLM has them, gets them: a router that asks has to take them out again.
`GET /_mode?chunks=50&pace_ms=20` sets how completions are answered: chunks 0 is a JSON body,
otherwise an SSE stream of so many events, in one burst or a chunk each `pace_ms`.

    python tests/perf/mock_engine.py PORT COUNT
"""

from __future__ import annotations

import asyncio
import json
import sys
from urllib.parse import parse_qs

import uvloop

USAGE = '"usage":{"prompt_tokens":512,"completion_tokens":50,"total_tokens":562}'
BODY = (
    '{"id":"cmpl-1","object":"text_completion","created":1,"model":"mock",'
    '"choices":[{"index":0,"text":" hello world","logprobs":null,"finish_reason":"length"}],'
    f"{USAGE}}}"
).encode()
ENVELOPE = b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"mock","choices":['


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


CHOICE = ENVELOPE + b'{"index":0,"text":" hello","logprobs":null,"finish_reason":null'
CHUNK = chunk(CHOICE + b"}]}\n\n")
TOLD_CHUNK = chunk(CHOICE + b',"prompt_token_ids":null,"token_ids":[24748]}]}\n\n')
END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
TOLD_END = chunk(ENVELOPE + b"]," + USAGE.encode() + b"}\n\n") + END
SSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS = {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "vllm"}]}
INFO = {"model_path": "mock", "served_model_name": "mock", "is_generation": True, "dp_size": 1}
METRICS = (
    b'vllm:num_requests_running{engine="0",model_name="mock"} %d.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="mock"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="mock"} 0.1\n'
)


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    """A complete response."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        kind,
        len(body),
        body,
    )


ANSWER = whole(BODY)


class Mode:
    """How completions are answered now."""

    chunks = 0
    pace_s = 0.0
    burst = told_burst = ANSWER
    engines = 1
    running = 0


class Engine(asyncio.Protocol):
    """One client connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.head = b""
        self.left = 0
        self.chunked = False
        self.told = False

    def data_received(self, data: bytes) -> None:
        if self.chunked:
            if data.endswith(b"0\r\n\r\n"):
                self.chunked = False
                self.answer()
            return
        if self.left:
            self.left -= len(data)
            if self.left <= 0:
                self.left = 0
                self.answer()
            return
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return
        head, rest, self.head = self.head[:end], self.head[end + 4 :], b""
        self.told = b'"return_token_ids":true' in rest[:100]
        if head.startswith(b"GET"):
            self.transport.write(page(head.split(b" ", 2)[1].decode()))
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at < 0:
            self.chunked = not rest.endswith(b"0\r\n\r\n")
            if not self.chunked:
                self.answer()
            return
        self.left = int(lower[at + 15 :].split(b"\r\n", 1)[0]) - len(rest)
        if self.left <= 0:
            self.left = 0
            self.answer()

    def answer(self) -> None:
        if Mode.chunks and Mode.pace_s:
            self.transport.write(SSE)
            Mode.running += 1
            self.tick(Mode.chunks, asyncio.get_running_loop().time())
        else:
            self.transport.write(Mode.told_burst if self.told else Mode.burst)

    def tick(self, left: int, due: float) -> None:
        if self.transport.is_closing():
            Mode.running -= 1
            return
        self.transport.write(TOLD_CHUNK if self.told else CHUNK)
        if left > 1:
            due += Mode.pace_s
            asyncio.get_running_loop().call_at(due, self.tick, left - 1, due)
        else:
            Mode.running -= 1
            self.transport.write(TOLD_END if self.told else END)


def page(target: str) -> bytes:
    """A GET's answer."""
    path, _, query = target.partition("?")
    if path == "/_mode":
        fields = parse_qs(query)
        Mode.chunks = int(fields["chunks"][0])
        Mode.pace_s = float(fields["pace_ms"][0]) / 1000
        Mode.burst = SSE + CHUNK * Mode.chunks + END if Mode.chunks else ANSWER
        Mode.told_burst = SSE + TOLD_CHUNK * Mode.chunks + TOLD_END if Mode.chunks else ANSWER
    if path == "/metrics":
        # What runs is spread evenly, about. A load nobody sent would be taken for other routers'.
        return whole(METRICS % (Mode.running // Mode.engines), b"text/plain")
    return whole(json.dumps(MODELS if path == "/v1/models" else INFO).encode())


async def main(port: int, count: int) -> None:
    """Listen on `count` ports from `port` on, until killed."""
    loop = asyncio.get_running_loop()
    Mode.engines = count
    servers = [
        await loop.create_server(Engine, "127.0.0.1", port + n, backlog=2048) for n in range(count)
    ]
    print("listening", flush=True)
    await asyncio.gather(*[server.serve_forever() for server in servers])


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
