"""The heartbeat: engine time as the model says, few writes, slow readers."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from infctl.timing import Prefill

from .conftest import FAST

if TYPE_CHECKING:
    from .conftest import Emulator, Start

LABELS = '{engine="0",model_name="m"}'


async def raw_stream(emulator: Emulator, body: bytes) -> bytes:
    """The bytes of a streamed answer, HTTP chunks and all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    data = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
    writer.close()
    return data


async def test_latencies_are_the_models(start: Start) -> None:
    timing = msgspec.structs.replace(FAST, prefill=Prefill(40.0, 0.0, 0.0), ttft_overhead_ms=20.0)
    emulator = await start(timing=timing, speed=2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await emulator.complete(prompt="abcd", max_tokens=101, ignore_eos=True)
    wall_ms = (loop.time() - began) * 1000
    assert wall_ms >= (40 + 20 + 100 * 0.5) / 2 - 2
    ttft_s = await emulator.metric("vllm:time_to_first_token_seconds_sum" + LABELS)
    e2e_s = await emulator.metric("vllm:e2e_request_latency_seconds_sum" + LABELS)
    tpot_s = await emulator.metric("vllm:request_time_per_output_token_seconds_sum" + LABELS)
    assert ttft_s == pytest.approx(0.060, abs=1e-9)
    assert e2e_s == pytest.approx(0.110, abs=1e-9)
    assert tpot_s == pytest.approx(0.0005, abs=1e-9)


async def test_tokens_share_writes_and_keep_their_events(emulator: Emulator) -> None:
    data = await raw_stream(
        emulator, b'{"prompt":"abcd","max_tokens":300,"ignore_eos":true,"stream":true}'
    )
    assert data.count(b"data: {") == 300
    writes = len(re.findall(rb"\r\n[0-9a-f]+\r\ndata", data))
    assert 3 <= writes <= 60


async def test_the_first_token_comes_alone(emulator: Emulator) -> None:
    data = await raw_stream(
        emulator, b'{"prompt":"abcd","max_tokens":100,"ignore_eos":true,"stream":true}'
    )
    first = data.split(b"\r\n\r\n", 1)[1].split(b"\r\n")[1]
    assert first.count(b"data: {") == 1


async def test_a_reader_that_does_not_read(emulator: Emulator) -> None:
    replica = emulator.engine.loop.replica
    body = b'{"prompt":"abcd","max_tokens":60000,"ignore_eos":true,"stream":true}'
    emulator.engine.loop.set_rate(1000.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port, limit=1024)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    await emulator.until(lambda: bool(emulator.engine.loop.answers))
    await emulator.until(lambda: replica.next_change_ms() is None)
    data = await asyncio.wait_for(reader.readuntil(b"\r\n"), 1)
    while not data.endswith(b"0\r\n\r\n"):
        more = await asyncio.wait_for(reader.read(1 << 20), 5)
        assert more
        data = data[-16:] + more
    writer.close()
