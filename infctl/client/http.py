"""A small HTTP/1.1 client for many streams: persistent connections, callbacks, no tasks.

httptools parses heads and chunk framing; body bytes go to the Exchange as they come.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from time import perf_counter
from urllib.parse import urlsplit

import httptools

from infctl.client.exchange import Exchange
from infctl.errors import UsageError

_HEADER_BYTES_MAX = 64 << 10
_CONNECT_S = 10.0


class Target:
    """Where requests go: host, port, TLS, the path before `/v1`, and the heads of requests."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = "Give the base URL of a server, as in http://127.0.0.1:8000."
            raise UsageError("is not an HTTP URL", where=url, hint=hint)
        self.url = url
        self.host = parts.hostname
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        self.base = parts.path.rstrip("/").removesuffix("/v1")
        extra = "".join(f"{name}: {_one_line(value)}\r\n" for name, value in headers.items())
        host = f"[{self.host}]" if ":" in self.host else self.host
        self._fields = f"Host: {host}:{self.port}\r\nUser-Agent: infctl-bench\r\n{extra}"

    def get(self, path: str) -> bytes:
        """A GET request."""
        return f"GET {self.base}{path} HTTP/1.1\r\n{self._fields}\r\n".encode("latin-1")

    def post(self, path: str, body: bytes) -> bytes:
        """A POST request with a JSON body."""
        head = (
            f"POST {self.base}{path} HTTP/1.1\r\n{self._fields}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise UsageError("a header value may not hold a line break")
    return value


class Connection(asyncio.Protocol):
    """One connection; serves one exchange at a time."""

    __slots__ = (
        "_header_bytes",
        "_keep_alive",
        "_now_s",
        "_parser",
        "_pool",
        "_stream",
        "_transport",
        "_used",
        "exchange",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self.exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._stream = False
        self._used = False
        self._keep_alive = False
        self._now_s = 0.0
        self._header_bytes = 0

    def start(self, exchange: Exchange) -> None:
        """Send a request. The connection must be idle."""
        assert self._transport is not None
        self.exchange = exchange
        self._stream = False
        self._header_bytes = 0
        exchange.wrote_s = perf_counter()
        self._transport.write(exchange.payload)

    def abort(self, reason: str) -> None:
        """End the exchange with an error and drop the connection."""
        exchange, self.exchange = self.exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            exchange.finish(perf_counter(), reason)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: connected."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have arrived."""
        self._now_s = perf_counter()
        exchange = self.exchange
        if exchange is None:
            self.abort("")  # an answer nobody asked for: this connection is out of step
            return
        exchange.touched_s = self._now_s
        try:
            self._parser.feed_data(data)
        except ValueError as error:
            self.abort(str(error))
        except httptools.HttpParserError as error:
            reason = error.__context__ if isinstance(error.__context__, ValueError) else None
            self.abort(str(reason or "not an HTTP answer"))

    def eof_received(self) -> None:
        """asyncio: the server closed its side; the transport closes itself."""

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: closed. A request that a reused connection dropped unseen is sent again."""
        exchange, self.exchange = self.exchange, None
        self._pool.lost(self)
        if exchange is None:
            return
        if self._used and not exchange.touched_s:
            self._pool.submit(exchange)
        elif not exchange.status:
            exchange.finish(perf_counter(), "disconnected")
        else:
            is_whole = self._stream and error is None  # a stream may end with the connection
            exchange.finish(perf_counter(), "" if is_whole else "answer cut off")

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header field."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _HEADER_BYTES_MAX:
            raise ValueError("an answer with more than 64 KiB of headers")
        lowered = name.lower()
        if lowered == b"content-type":
            self._stream = value.lower().startswith(b"text/event-stream")
        elif lowered == b"x-infctl-endpoint" and self.exchange is not None:
            self.exchange.endpoint = value.decode("latin-1")[:256]

    def on_headers_complete(self) -> None:
        """httptools: the head is complete."""
        self._keep_alive = self._parser.should_keep_alive()
        if self.exchange is not None:
            self.exchange.headers_done(self._parser.get_status_code(), self._stream)

    def on_body(self, data: bytes) -> None:
        """httptools: body bytes, without chunk framing."""
        if self.exchange is not None:
            self.exchange.feed(data, self._now_s)

    def on_message_complete(self) -> None:
        """httptools: the answer is complete."""
        exchange, self.exchange = self.exchange, None
        self._used = True
        if self._keep_alive:
            self._parser = httptools.HttpResponseParser(self)
            self._pool.release(self)
        elif self._transport is not None:
            self._transport.close()
        if exchange is not None:
            exchange.finish(self._now_s)


class Pool:
    """At most `connections_max` connections to one target; requests beyond them wait in line."""

    def __init__(self, target: Target, connections_max: int) -> None:
        self.target = target
        self.connections_max = connections_max
        self.connections: set[Connection] = set()
        self.peak = 0
        self._connecting = 0
        self._idle: list[Connection] = []
        self._waiting: deque[Exchange] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, exchange: Exchange) -> None:
        """Send a request now, or as soon as a connection is free."""
        if not exchange.sent_s:
            exchange.sent_s = perf_counter()
        if self._idle:
            self._idle.pop().start(exchange)
        elif len(self.connections) + self._connecting < self.connections_max:
            self._connecting += 1
            task = asyncio.get_running_loop().create_task(self._connect(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._waiting.append(exchange)

    async def fetch(self, payload: bytes, timeout_s: float) -> Exchange:
        """Send one request and wait for its end."""
        done: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()

        def finished(exchange: Exchange) -> None:
            if not done.done():
                done.set_result(exchange)

        exchange = Exchange(payload, finished)
        self.submit(exchange)
        try:
            return await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            exchange.finish(perf_counter(), "timeout")
            return exchange

    def release(self, connection: Connection) -> None:
        """A connection has finished its exchange."""
        exchange = self._next_waiting()
        if exchange is not None:
            connection.start(exchange)
        else:
            self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        exchange = self._next_waiting()
        if exchange is not None:
            self.submit(exchange)

    def _next_waiting(self) -> Exchange | None:
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.finished:
                return exchange
        return None

    def busy(self) -> list[tuple[Connection, Exchange]]:
        """Connections with an exchange on them, and it."""
        return [(c, c.exchange) for c in self.connections if c.exchange is not None]

    def close(self) -> None:
        """Drop every connection; whatever is still open ends with an error."""
        for exchange in self._waiting:
            exchange.finish(perf_counter(), "stopped")
        self._waiting.clear()
        for connection in list(self.connections):
            connection.abort("stopped")

    async def _connect(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        target = self.target
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), target.host, target.port, ssl=target.tls
                )
        except TimeoutError:
            self._connecting -= 1
            exchange.finish(perf_counter(), "connect timeout")
            return
        except OSError as error:
            self._connecting -= 1
            exchange.finish(perf_counter(), f"cannot connect: {error.strerror or error}"[:120])
            return
        self._connecting -= 1
        self.connections.add(connection)
        self.peak = max(self.peak, len(self.connections))
        connection.start(exchange)
