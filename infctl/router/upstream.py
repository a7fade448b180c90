"""Connections to endpoints: pooled, kept alive, one request at a time."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from infctl.router.tls import EngineTrust
from infctl.router.wire import HEAD_END, JSON, ResponseHead, dechunk, request_head

if TYPE_CHECKING:
    from infctl.core.fleet import Endpoint

_HEAD_MAX = 65536
_IDLE_MAX = 256
_PROBE_BODY_MAX = 8 << 20


_OWN_FAULTS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
)


def own_fault(error: OSError) -> bool:
    """Whether a connection failed for want of something here: descriptors, memory, ports."""
    return error.errno in _OWN_FAULTS


class Receiver(Protocol):
    """Who gets an endpoint's answer."""

    def on_head(self, response: ResponseHead) -> None:
        """The final response head is here."""
        ...

    def on_data(self, data: bytes) -> None:
        """Body bytes as they came, chunked framing included."""
        ...

    def on_end(self) -> None:
        """The body is complete."""
        ...

    def on_failure(self, reason: str, clean: bool) -> None:
        """The connection broke; `clean` when not one byte of an answer had come."""
        ...


class Link(asyncio.Protocol):
    """One connection to one endpoint."""

    __slots__ = (
        "_buffer", "_head", "_left", "idle", "pool", "receiver", "reused", "transport",
    )  # fmt: skip

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.receiver: Receiver | None = None
        self.reused = False
        self.idle = False
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._left: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, receiver: Receiver, data: bytes, body: bytes | bytearray | memoryview) -> None:
        """Send one request; its answer goes to `receiver`."""
        self.receiver = receiver
        self.idle = False
        if len(body) < 65536:
            self.transport.write(data + body)
        else:
            self.transport.write(data)
            self.transport.write(body)

    def data_received(self, data: bytes) -> None:
        if self.receiver is None:
            self.transport.abort()
            return
        try:
            if self._head is None:
                self._take_head(data)
            else:
                self._take_body(data)
        except ValueError as error:
            self._fail(str(error), clean=False)

    def _take_head(self, data: bytes) -> None:
        rest = self._buffer + data if self._buffer else data
        head = None
        while head is None or head.status < 200:  # interim answers: 100, 102, 103
            end = rest.find(HEAD_END)
            if end < 0:
                if len(rest) > _HEAD_MAX:
                    raise ValueError(f"a response head over {_HEAD_MAX} bytes")
                self._buffer = rest
                return
            head = ResponseHead()
            head.feed(rest[: end + 4])
            rest = rest[end + 4 :]
        self._buffer = b""
        self._head = head
        self._left = 0 if head.status in (204, 304) else None if head.chunked else head.length
        if not head.chunked:
            head.parsed()
        receiver = self.receiver
        if receiver is None:
            return
        receiver.on_head(head)
        if rest or self._left == 0:
            self._take_body(rest)

    def _take_body(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            return
        head = self._head
        if head is not None and head.chunked and self._left is None:
            if data:
                receiver.on_data(head.follow(data))
            if head.done and self.receiver is receiver:
                self._complete()
            return
        if self._left is not None:
            if len(data) > self._left:
                raise ValueError("bytes after the end of a response")
            self._left -= len(data)
        if data:
            receiver.on_data(data)
        if self._left == 0 and self.receiver is receiver:
            self._complete()

    def _complete(self) -> None:
        receiver, head = self.receiver, self._head
        self.receiver = self._head = None
        if head is not None:
            head.parsed()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # answered before it took the request, which would stay ahead
        elif head is not None and head.keep_alive:
            self.pool.put_back(self)
        else:
            self.transport.close()
        if receiver is not None:
            receiver.on_end()

    def _fail(self, reason: str, clean: bool) -> None:
        receiver, self.receiver = self.receiver, None
        self.transport.abort()
        if receiver is not None:
            receiver.on_failure(reason, clean)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.lost(self)
        receiver, self.receiver = self.receiver, None
        if receiver is None:
            return
        head = self._head
        until_close = head is not None and not head.chunked and head.length is None
        if until_close and exc is None:
            receiver.on_end()
            return
        clean = head is None and not self._buffer
        receiver.on_failure(f"connection lost ({exc or 'closed by the endpoint'})", clean)

    def abort(self) -> None:
        """Drop the connection without telling the receiver; the engine stops generating."""
        self.receiver = None
        self.transport.abort()


class Pool:
    """Idle connections to one endpoint, newest first."""

    def __init__(self, endpoint: Endpoint, trust: EngineTrust | None = None) -> None:
        parts = urlsplit(endpoint.url)
        secure = parts.scheme == "https"
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or (443 if secure else 80)
        self._trust = (trust or EngineTrust()) if secure else None
        self.netloc = parts.netloc.encode()
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self.closed = False

    def take(self) -> Link | None:
        """An idle connection, or None."""
        while self._idle:
            link = self._idle.pop()
            if not link.transport.is_closing():
                link.reused = True
                return link
        return None

    async def connect(self, timeout_s: float) -> Link:
        """A new connection. Raises OSError (TimeoutError included)."""
        loop = asyncio.get_running_loop()
        context = self._trust.context if self._trust else None
        async with asyncio.timeout(timeout_s):
            _, link = await loop.create_connection(
                lambda: Link(self), self.host, self.port, ssl=context
            )
        self._links.add(link)
        return link

    def put_back(self, link: Link) -> None:
        """Keep a connection whose answer is complete."""
        if self.closed or len(self._idle) >= _IDLE_MAX:
            link.transport.close()
            return
        if not link.transport.is_reading():  # its last client was slow to read
            link.transport.resume_reading()
        link.idle = True
        self._idle.append(link)

    def lost(self, link: Link) -> None:
        """A connection is gone."""
        self._links.discard(link)
        if link.idle and link in self._idle:
            self._idle.remove(link)

    def close(self) -> None:
        """Drop idle connections and keep none from now on; those in work end by themselves."""
        self.closed = True
        while self._idle:
            self._idle.pop().transport.close()

    async def get(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """A probe: status and body of GET `path`. Raises OSError on any failure."""
        return await self._ask(b"GET", path, [], b"", timeout_s)

    async def post(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of POST `path` with a JSON body. Raises OSError on any failure."""
        headers = [(b"content-type", JSON)]
        return await self._ask(b"POST", path, headers, body, timeout_s)

    async def _ask(
        self,
        method: bytes,
        path: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        timeout_s: float,
    ) -> tuple[int, bytes]:
        head = request_head(method, path.encode(), self.netloc, headers, b"probe", len(body))
        async with asyncio.timeout(timeout_s):
            link = self.take()
            if link is not None:
                try:
                    return await _exchange(link, head, body)
                except _Unanswered:
                    pass  # an idle connection may close just as it is used: that says nothing
            return await _exchange(await self.connect(timeout_s), head, body)


class _Unanswered(ConnectionError):
    """The connection closed before one byte of an answer."""


async def _exchange(link: Link, head: bytes, body: bytes) -> tuple[int, bytes]:
    probe = _Probe()
    link.send(probe, head, body)
    try:
        return await probe.result
    finally:
        if link.receiver is probe:  # it timed out, or is answered too much
            link.abort()


class _Probe:
    """Receiver of a small answer."""

    def __init__(self) -> None:
        self.result: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.failed = False
        self._head: ResponseHead | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, response: ResponseHead) -> None:
        self._head = response

    def on_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _PROBE_BODY_MAX:
            self.on_failure("the answer is too large", False)
        else:
            self._parts.append(data)

    def on_end(self) -> None:
        if self._head is None or self.result.done():
            return
        body = b"".join(self._parts)
        if self._head.chunked and body:
            body = dechunk(body)
        self.result.set_result((self._head.status, body))

    def on_failure(self, reason: str, clean: bool) -> None:
        self.failed = True
        if not self.result.done():
            kind = _Unanswered if clean else ConnectionError
            self.result.set_exception(kind(reason))
