"""KV events over ZMQ, live and replayed."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from infctl.errors import MachineError
from infctl.replica import ReplicaOptions

if TYPE_CHECKING:
    from .conftest import Start

RECORDING = ReplicaOptions(block_size=4, record_events=True)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


async def arrived(reader: Any, seconds: float) -> bool:
    """Whether something is there within so long. Asked for again and again: its descriptor is
    edge-triggered, and pyzmq's own wait now and then sleeps through an edge."""
    deadline = time.monotonic() + seconds
    while not reader.poll(0):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.002)
    return True


async def received(sub: Any) -> tuple[int, list[dict[str, Any]]]:
    """Sequence number and events of the next batch."""
    assert await arrived(sub, 10.0)
    topic, number, payload = sub.recv_multipart()
    assert topic == b""
    _, events, rank = msgspec.msgpack.decode(payload)
    assert rank == 0
    return int.from_bytes(number, "big"), events


async def test_blocks_are_announced_and_replayed(start: Start) -> None:
    port, replay_port = free_ports(2)
    emulator = await start(RECORDING, event_port=port, event_replay_port=replay_port)
    context: zmq.Context[Any] = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.connect(f"tcp://127.0.0.1:{port}")
    sub.subscribe(b"")
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{replay_port}")
    try:
        while not await arrived(sub, 0.05):
            await emulator.client.post("/reset_prefix_cache")
        await received(sub)
        while await arrived(sub, 0.05):
            await received(sub)
        await emulator.complete(prompt="abcd" * 9, max_tokens=1)
        number, events = await received(sub)
        first, second = events[0]["block_hashes"]
        assert events[0]["type"] == "BlockStored"
        assert events[0]["parent_block_hash"] is None
        assert events[0]["token_ids"] == [0x64636261] * 8
        assert events[0]["block_size"] == 4
        answer = await emulator.complete(prompt="abcd" * 12, max_tokens=5, ignore_eos=True)
        later, events = await received(sub)
        assert (later, events[0]["parent_block_hash"]) == (number + 1, second)
        assert first != second
        last, events = await received(sub)
        text = answer["choices"][0]["text"].encode()
        assert last == later + 1
        assert events[0]["token_ids"] == [
            int.from_bytes(text[i : i + 4], "little") for i in range(0, 16, 4)
        ]

        dealer.send_multipart([b"", number.to_bytes(8, "big")])
        numbers = []
        while True:
            assert await arrived(dealer, 10.0)
            frames = dealer.recv_multipart()
            numbers.append(int.from_bytes(frames[2], "big", signed=True))
            if numbers[-1] == -1:
                break
        assert numbers == [number, number + 1, number + 2, -1]
    finally:
        context.destroy(linger=0)


async def test_a_taken_event_port(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match="KV event port"):
            await start(RECORDING, event_port=port)
