"""KV events over ZMQ, as vLLM publishes them: [topic][sequence][msgpack], with replay.

The payload is [timestamp, [event, …], rank]; an event is a map with a `type`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from infctl.errors import MachineError
from infctl.replica.kvcache import BlocksRemoved, BlocksStored, CacheCleared

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from infctl.emulator.stream import Answer
    from infctl.replica.kvcache import CacheEvent

_REPLAY_MAX = 10_000
_HIGH_WATER = 100_000
_END = (-1).to_bytes(8, "big", signed=True)
_MEDIUM = "GPU"


class EventPublisher:
    """Publishes batches of cache events; late subscribers ask for those they missed."""

    def __init__(
        self,
        host: str,
        port: int,
        replay_port: int,
        block_size: int,
        loop: asyncio.AbstractEventLoop,
        wall_s: Callable[[], float],
    ) -> None:
        self._block_size = block_size
        self._loop = loop
        self._wall_s = wall_s
        self._sequence = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_REPLAY_MAX)
        self._context: zmq.Context[Any] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._publish = self._bind(zmq.PUB, host, port)
        self._replay: zmq.Socket[bytes] | None = None
        if replay_port:
            self._replay = self._bind(zmq.ROUTER, host, replay_port)
            loop.add_reader(self._replay, self._answer_replays)

    def publish(self, events: list[CacheEvent], answers: Mapping[str, Answer]) -> None:
        """Send one batch; nothing for no events."""
        maps = [self._encode(event, answers) for event in events]
        if not maps:
            return
        payload = msgspec.msgpack.encode([self._wall_s(), maps, 0])
        self._kept.append((self._sequence, payload))
        self._publish.send_multipart([b"", self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1
        if self._replay is not None:
            self._answer_replays()

    def close(self) -> None:
        """Close the sockets without waiting for readers."""
        if self._replay is not None:
            self._loop.remove_reader(self._replay)
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()

    def _bind(self, kind: int, host: str, port: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(_HIGH_WATER)
        self._sockets.append(socket)
        try:
            socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            for other in self._sockets:
                other.close(linger=0)
            self._context.term()
            raise MachineError(
                f"the KV event port cannot be opened: {error.strerror}",
                where=f"{host}:{port}",
                hint="choose another --event-port",
            ) from None
        return socket

    def _answer_replays(self) -> None:
        """ZMQ descriptors are edge-triggered: read until there is nothing left."""
        socket = self._replay
        while socket is not None and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 3:
                continue
            first = int.from_bytes(frames[2], "big")
            for sequence, payload in self._kept:
                if sequence >= first:
                    number = sequence.to_bytes(8, "big")
                    socket.send_multipart([frames[0], b"", b"", number, payload], zmq.NOBLOCK)
            socket.send_multipart([frames[0], b"", b"", _END, b""], zmq.NOBLOCK)

    def _encode(self, event: CacheEvent, answers: Mapping[str, Answer]) -> dict[str, object]:
        if isinstance(event, BlocksStored):
            return self._stored(event, answers)
        if isinstance(event, BlocksRemoved):
            return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": _MEDIUM}
        assert isinstance(event, CacheCleared)
        return {"type": "AllBlocksCleared"}

    def _stored(self, event: BlocksStored, answers: Mapping[str, Answer]) -> dict[str, object]:
        answer = answers.get(event.request_id)
        context = answer.context if answer is not None else None
        start = event.first * self._block_size
        end = start + len(event.hashes) * self._block_size
        return {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": context.token_ids(start, end) if context is not None else [],
            "block_size": self._block_size,
            "lora_id": None,
            "medium": _MEDIUM,
            "lora_name": None,
            "extra_keys": None,
        }
