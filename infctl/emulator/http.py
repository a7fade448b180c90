"""A light HTTP/1.1 server: keep-alive, content-length and chunked bodies, event streams."""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import httptools
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

BODY_MAX = 64 * 1024 * 1024
HEADERS_MAX = 64 * 1024
PIPELINED_MAX = 8
CONNECTIONS_MAX = 8192
_READ_BYTES = 256 * 1024
_HIGH_WATER = 1024 * 1024
_KEPT_HEADERS = frozenset({b"x-request-id", b"expect"})
_JSON = b"application/json"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

_buffer = bytearray(_READ_BYTES)  # one for all: a read is parsed before the next one begins
_view = memoryview(_buffer)


class HttpRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed request; header names are lower case, only those in use are kept."""

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    chunked: bool
    """Whether the client understands chunked answers (HTTP/1.1)."""


class Server:
    """What connections share: the handler, and who is open."""

    def __init__(self, handle: Callable[[HttpRequest, Connection], None]) -> None:
        self.handle = handle
        self.connections: set[Connection] = set()

    def connection(self) -> Connection:
        """A protocol for a new connection."""
        return Connection(self)

    def close(self) -> None:
        """Close every connection at once."""
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.BufferedProtocol):
    """One client; answers one request after the other, in order."""

    def __init__(self, server: Server) -> None:
        self.paused = False
        self.on_lost: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._current: HttpRequest | None = None
        self._queue: deque[HttpRequest] = deque()
        self._fresh()

    # -- asyncio -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._server.connections) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        self._queue.clear()
        lost, self.on_lost, self.on_resume = self.on_lost, None, None
        if lost is not None:
            lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _view

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._parser.feed_data(_view[:nbytes])
        except httptools.HttpParserUpgrade:
            pass  # h2c is declined by going on in HTTP/1.1
        except httptools.HttpParserError:
            self._refuse(400)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.on_resume is not None:
            self.on_resume()

    # -- httptools ---------------------------------------------------------------------------

    def _fresh(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        name = name.lower()
        if name in _KEPT_HEADERS:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self._put(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > BODY_MAX:
            self._refuse(413)
        else:
            self._body += data

    def on_message_complete(self) -> None:
        parser = self._parser
        if self._transport is None:
            return
        try:
            url = httptools.parse_url(self._url)
        except httptools.HttpParserInvalidURLError:
            self._refuse(400)
            return
        request = HttpRequest(
            parser.get_method(),
            url.path or b"/",
            url.query or b"",
            self._headers,
            bytes(self._body),
            parser.should_keep_alive(),
            parser.get_http_version() != "1.0",
        )
        self._fresh()
        if self._current is None:
            self._begin(request)
        elif len(self._queue) < PIPELINED_MAX:
            self._queue.append(request)
        else:
            self.abort()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADERS_MAX:
            self._refuse(431)

    # -- answers -----------------------------------------------------------------------------

    def send(self, status: int, body: bytes, content_type: bytes = _JSON) -> None:
        """A whole answer to the current request."""
        if self._current is None:
            return
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            status,
            _REASONS.get(status, b""),
            content_type,
            len(body),
            b"" if self._current.keep_alive else b"connection: close\r\n",
        )
        self._put(head if self._current.method == b"HEAD" else head + body)
        self._done()

    def open(self) -> None:
        """The head of an event stream."""
        if self._current is None:
            return
        if not self._current.chunked:
            self._put(_STREAM_HEAD + b"connection: close\r\n\r\n")
        elif self._current.keep_alive:
            self._put(_STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n")
        else:
            self._put(_STREAM_HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")

    def write(self, data: bytes) -> None:
        """More of an event stream."""
        if self._current is not None:
            self._put(b"%x\r\n%b\r\n" % (len(data), data) if self._current.chunked else data)

    def end(self, data: bytes) -> None:
        """The last of an event stream."""
        if self._current is None:
            return
        chunked = self._current.chunked
        self._put(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if chunked else data)
        self._done(close=not chunked)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _put(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _begin(self, request: HttpRequest) -> None:
        self._current = request
        self._server.handle(request, self)

    def _done(self, *, close: bool = False) -> None:
        keep = self._current is not None and self._current.keep_alive and not close
        self._current = self.on_lost = self.on_resume = None
        if not keep:
            if self._transport is not None:
                self._transport.close()
        elif self._queue:
            self._begin(self._queue.popleft())

    def _refuse(self, status: int) -> None:
        """Answer a request that cannot be parsed, and close."""
        transport, self._transport = self._transport, None
        if transport is None or transport.is_closing():
            return
        if self._current is None:
            phrase = _REASONS[status]
            head = b"HTTP/1.1 %d %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            transport.write(head % (status, phrase))
        transport.close()
