"""The client side of a connection: bytes in, whole requests out, answers back.

A BufferedProtocol: the kernel copies a body of known length straight into its bytearray. One
request is in work at a time; what a client pipelines waits, bounded, until the answer is out.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import TYPE_CHECKING

from infctl.router.wire import (
    HEAD_END,
    BadRequest,
    Head,
    answer,
    check_coding,
    error_body,
    parse_head,
)  # fmt: skip

if TYPE_CHECKING:
    from infctl.profile.model import Limits
    from infctl.router.seams import Exchange, Handler

_EMPTY_LINES = re.compile(rb"\A(?:\r\n)+")
_SCRATCH = 65536
_BODY_FIRST = 32768
_BODY_GROWTH = 4

_LINGER_S = 3.0
_LINGER_BYTES = 64 << 20
_LINGERING_MAX = 1024


class Connection(asyncio.BufferedProtocol):
    """One client connection of a server that has `handler` and `limits`."""

    __slots__ = (
        "_body", "_chunked", "_discarded", "_got", "_head", "_length", "_parting", "_pending",
        "_started", "_view", "closing", "deadline", "exchange", "full", "server", "transport",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.exchange: Exchange | None = None
        self.closing = False
        self.deadline = 0.0
        self._pending = b""
        self._head: Head | None = None
        self._body: bytearray | None = None
        self._view: memoryview | None = None
        self._got = 0
        self._length = 0
        self._chunked = 0
        self._discarded = 0
        self.full = False
        self._started = False
        self._parting = False

    # --- transport callbacks ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.deadline = self.server.now() + self.server.idle_s
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self.server.closed(self)
        exchange, self.exchange = self.exchange, None
        self._view = self._body = None
        if exchange is not None:
            exchange.client_gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._view is not None:
            return self._view[self._got :]
        return self.server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._view is not None:
            self._got += nbytes
            if self._got == self._length:
                self._body_complete()
            elif self._got == len(self._view):
                self._grow_body()
            return
        if self.closing:
            self._discard(nbytes)
            return
        data = bytes(self.server.scratch[:nbytes])
        busy = self.exchange is not None or self.full
        if busy or self._pending:
            data = self._pending + data
            self._pending = data
        if busy:
            if len(self._pending) > _SCRATCH:
                self.transport.pause_reading()
            return
        self._pending = b""
        self._advance(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.full = True
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.full = False
        if self.exchange is not None:
            self.exchange.resume()
        elif self._pending:
            asyncio.get_running_loop().call_soon(self._next)

    # --- requests ---------------------------------------------------------------------------------

    def _advance(self, data: bytes) -> None:
        try:
            if self._head is not None:
                self._feed_chunked(self._head, data)
            else:
                self._feed_head(data)
        except BadRequest as error:
            self.refuse(error.status, error.message)

    def _feed_head(self, data: bytes) -> None:
        if data[:2] == b"\r\n":
            data = _EMPTY_LINES.sub(b"", data, 1)
        limits = self.server.limits
        end = data.find(HEAD_END)
        if end < 0 or end > limits.headers_kib_max * 1024:
            if len(data) > limits.headers_kib_max * 1024:
                raise BadRequest(431, f"request head over {limits.headers_kib_max} KiB")
            if data and not self._started:
                self._started = True
                self.deadline = self.server.now() + limits.header_s
            self._pending = data
            return
        end += 4
        self._started = False
        head = parse_head(data[:end])
        self.deadline = self.server.now() + limits.body_s
        length = head.get(b"content-length")
        if head.get(b"transfer-encoding") is not None:
            check_coding(head)
            if not self._awaits_body(head):
                return
            self._head = head
            self._feed_chunked(head, data[end:])
        elif length is None or length == b"0":
            head.parsed()
            self._deliver(head, b"", data[end:])
        else:
            head.parsed()
            self._start_body(head, int(length), data[end:])

    def _awaits_body(self, head: Head) -> bool:
        """Whether to wait for a body: not that of a client who would be turned away with it."""
        refusal = self.server.handler.on_head(head)
        if refusal is not None:
            self.refuse(refusal.status, refusal.message, refusal.retry_after_s)
            return False
        expected = head.get(b"expect")
        if expected is not None and head.version != "1.0":
            if expected.lower() != b"100-continue":
                raise BadRequest(417, "only 100-continue can be expected")
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _start_body(self, head: Head, length: int, rest: bytes) -> None:
        limits = self.server.limits
        if length > limits.body_mib_max << 20:
            raise BadRequest(413, f"request body over {limits.body_mib_max} MiB")
        if len(rest) >= length:
            self._deliver(head, rest[:length], rest[length:])
            return
        if not self._awaits_body(head):
            return
        self._head, self._length = head, length
        self._make_body(rest, max(_BODY_FIRST, len(rest) * _BODY_GROWTH))

    def _grow_body(self) -> None:
        if self._body is not None:
            self._make_body(self._body, len(self._body) * _BODY_GROWTH)

    def _make_body(self, start: bytes | bytearray, size: int) -> None:
        """Room for the body as it comes: a length is a mere claim until its bytes are here."""
        self._body = bytearray(min(self._length, size))
        self._body[: len(start)] = start
        self._got = len(start)
        self._view = memoryview(self._body)

    def _body_complete(self) -> None:
        head, body = self._head, self._body
        self._head = self._body = self._view = None
        if head is not None and body is not None:
            self._deliver(head, body, b"")

    def _feed_chunked(self, head: Head, data: bytes) -> None:
        self._chunked += len(data)
        if self._chunked > self.server.limits.body_mib_max << 20:
            raise BadRequest(413, f"request body over {self.server.limits.body_mib_max} MiB")
        if data:
            head.feed(data)
        if head.complete:
            self._head, self._chunked = None, 0
            head.parsed()
            self._deliver(head, head.body, b"")

    def _deliver(self, head: Head, body: bytes | bytearray, rest: bytes) -> None:
        self._pending = rest
        self.deadline = 0.0
        try:
            self.server.handler.on_request(self, head, body)
        except Exception as error:
            self.server.handler.on_bug(error)
            self.refuse(500, "the router failed on this request")

    # --- answers ----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes of an answer."""
        if not self.closing:
            self.transport.write(data)

    def keeps(self, head: Head) -> bool:
        """Whether the connection stays open after this request; its answer must say if not."""
        self._parting = self.server.draining
        return head.keep_alive and not self._parting

    def finish(self, keep_alive: bool) -> None:
        """The answer is out: close, or go on with the next request."""
        self.exchange = None
        if self.closing:
            return
        if not keep_alive or self._parting:
            self.linger() if self._pending else self.close()
            return
        self.deadline = self.server.now() + self.server.idle_s
        if self._pending:
            # Not at once: a train of pipelined requests must not become a train of stack frames.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._pending and self.exchange is None and not self.full and not self.closing:
            self.transport.resume_reading()
            data, self._pending = self._pending, b""
            self._advance(data)

    def respond(self, head: Head, response: bytes) -> None:
        """Send a whole answer and finish."""
        self.write(response)
        self.finish(head.keep_alive)

    def refuse(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        """Answer a malformed request and close; its framing can't be trusted any more."""
        self.server.handler.on_refused(status)
        body = error_body(status, message)
        self.write(answer(status, body, retry_after_s=retry_after_s, close=True))
        self.linger()

    def linger(self) -> None:
        """Say that nothing more comes, and read what the client still sends until it closes, for
        a bounded while: closing on unread bytes would reset the connection, and the reset may
        overtake the answer."""
        if self.closing:
            return
        if not self.server.lingers(self):
            self.close()
            return
        self.closing = True
        slow = self.transport.get_write_buffer_size() > 0
        self.deadline = self.server.now() + (self.server.limits.idle_s if slow else _LINGER_S)
        self._head = self._body = self._view = None
        self._pending = b""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()

    def _discard(self, nbytes: int) -> None:
        self._discarded += nbytes
        if self._discarded > _LINGER_BYTES:
            self.abort()

    def close(self) -> None:
        """Close after what was written is out."""
        self.closing = True
        self.deadline = self.server.now() + self.server.limits.idle_s
        self.transport.close()

    def abort(self) -> None:
        """Cut the connection: the client must not take a broken answer for a whole one."""
        self.closing = True
        self.transport.abort()

    @property
    def working(self) -> bool:
        """Whether a request, or a part of one, is here and not answered yet."""
        arriving = self._head is not None or self._started or bool(self._pending)
        return self.exchange is not None or (arriving and not self.closing)

    @property
    def flushing(self) -> bool:
        """Whether the last bytes of an answer are still on their way out."""
        return self.closing and self.transport.get_write_buffer_size() > 0

    def expired(self, now: float) -> bool:
        """Whether the client took too long for its head or body, or idled too long."""
        return bool(self.deadline) and now > self.deadline and self.exchange is None

    def expire(self) -> None:
        """Give up on a slow or idle client, or on one that never took what was written."""
        if self.closing:
            self.abort()
        elif self._head is not None or self._started:
            self.refuse(408, "the request did not arrive in time")
        elif not self._readable():
            self.linger() if self.server.draining else self.close()

    def _readable(self) -> bool:
        """Whether bytes are here that have not been read yet: a request that came just in time."""
        poll, sock = select.poll(), self.transport.get_extra_info("socket")
        if sock is not None:
            poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))


class Server:
    """The connections of one listening socket, their limits and their handler."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self.handler = handler
        self.limits = limits
        self.connections: set[Connection] = set()
        self.lingering: set[Connection] = set()
        self._parting_s: float | None = None
        self.scratch = memoryview(bytearray(_SCRATCH))
        self.now = asyncio.get_running_loop().time

    def __call__(self) -> Connection:
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        """Count a connection in, or turn it away when there are too many."""
        if len(self.connections) < self.limits.connections_max:
            self.connections.add(connection)
        else:
            connection.refuse(503, "too many connections", 1)

    def closed(self, connection: Connection) -> None:
        """Count a connection out."""
        self.connections.discard(connection)
        self.lingering.discard(connection)

    def lingers(self, connection: Connection) -> bool:
        """Whether a connection that is answered may linger; from then on it is not counted among
        those a client can use. False when too many do."""
        if len(self.lingering) >= _LINGERING_MAX:
            return False
        self.connections.discard(connection)
        self.lingering.add(connection)
        return True

    def sweep(self) -> None:
        """Drop clients that are too slow or idle too long; call about once a second."""
        now = self.now()
        everyone = (*self.connections, *self.lingering)
        for connection in [c for c in everyone if c.expired(now)]:
            connection.expire()

    @property
    def idle_s(self) -> float:
        """How long a connection may be idle."""
        return self.limits.idle_s if self._parting_s is None else self._parting_s

    @property
    def draining(self) -> bool:
        """Whether every answer says that its connection closes."""
        return self._parting_s is not None

    def drain(self, parting_s: float) -> None:
        """Answer what still comes, and close each connection with its answer. Idle ones close in
        `parting_s`, for a request may be on its way there: the longer, the more clients learn from
        an answer, and the fewer from a closed connection."""
        self._parting_s = parting_s
        until = self.now() + parting_s
        for connection in self.connections:
            if not connection.working and not connection.closing:
                connection.deadline = min(connection.deadline, until)

    @property
    def working(self) -> bool:
        """Whether there is a connection that may bring a request or is to get an answer."""
        return bool(self.connections) or any(c.flushing for c in self.lingering)
