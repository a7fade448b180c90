"""Client bytes: requests, pipelines and chunked bodies, mutated and cut at will, against h11.

Where our server takes a request, h11 must take it too, and see the same method, target, headers,
body, and beginning of the next one. Where we refuse, h11 may be more patient.
"""

from __future__ import annotations

from typing import Any

import h11

from infctl.profile.model import Limits
from infctl.router.keys import Refusal
from infctl.router.server import Connection, Server
from infctl.router.wire import Head, answer

from .harness import Broken, Loop, Wire, feed, running
from .source import Source, cut, mutated
from .strict import response

TOKENS = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b":", b": ", b"\x00", b"\xff", b"0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"content-length:0\r\n",
    b"Host: b\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"HTTP/1.0", b"HTTP/1.1",
    b"GET / HTTP/1.1\r\nHost: c\r\n\r\n", b"chunked", b"identity", b",", b";", b"0", b"1", b"ffff",
    b"Connection: keep-alive\r\n", b"+", b"-", b"0x", b"POST", b"Upgrade: h2c\r\n", b"_",
    b"//", b"%",
)  # fmt: skip

METHODS = (b"POST", b"GET", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"post", b"DELETE", b"SOURCE")
TARGETS = (b"/v1/completions", b"/", b"*", b"http://a/b", b"/a?b=c#d", b"a", b"/%00", b"a:1", b"")
VERSIONS = (
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"RTSP/1.0",
)
HEADERS = (
    b"Host: a", b"host:a", b"X-A: b", b"X-A:", b"X-A:\t b \t", b"Connection: close",
    b"Connection: keep-alive", b"Expect: 100-continue", b"X-B: \xe9", b"Content-Type: text/plain",
    b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 5", b"Transfer-Encoding: chunked",
    b"TE: trailers", b"Transfer-Encoding: gzip", b"Connection: close, x-a", b"X-C: a,b;c=\"d\"",
)  # fmt: skip
BODIES = (b"", b"hello", b"{}", b"0\r\n\r\n", b"a" * 300, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def chunks(source: Source, body: bytes) -> bytes:
    """`body` in chunks of one form or another."""
    made, at = b"", 0
    while at < len(body):
        size = source.below(len(body) - at) + 1
        form = source.pick((b"%x", b"%X", b"0%x", b"%x;a=b", b'%x;a="b"', b"%x ;a", b"0000%x"))
        made += form % size + b"\r\n" + body[at : at + size] + b"\r\n"
        at += size
    trailer = source.pick((b"", b"", b"", b"X-T: 1\r\n", b"Content-Length: 5\r\n", b"Host: t\r\n"))
    return made + source.pick((b"0", b"0", b"0", b"000", b"0;a=b")) + b"\r\n" + trailer + b"\r\n"


def one_request(source: Source) -> bytes:
    """A request, mostly a good one."""
    method = source.pick(METHODS) if source.one_in(4) else b"POST"
    target = source.pick(TARGETS) if source.one_in(4) else b"/v1/completions"
    version = source.pick(VERSIONS) if source.one_in(4) else b"HTTP/1.1"
    rows = [] if source.one_in(16) else [b"Host: a"]
    rows += [source.pick(HEADERS) for _ in range(source.below(4))]
    body = source.pick(BODIES)
    framing = source.below(4)
    if framing == 1:
        rows.append(b"Transfer-Encoding: chunked")
        body = chunks(source, body)
    elif framing != 2 or body:
        length = source.pick((b"%d", b"%d", b"%d", b"0%d", b"+%d", b"%d ", b"%d,%d"[:2], b"1%d"))
        rows.append(b"Content-Length: " + length % len(body))
    return b"%s %s %s\r\n%s\r\n\r\n" % (method, target, version, b"\r\n".join(rows)) + body


def wire_bytes(source: Source) -> bytes:
    """What a client sends: bytes as they are, or requests and what became of them."""
    if source.one_in(8):
        return source.take(source.left)
    data = b"".join(one_request(source) for _ in range(source.below(3) + 1))
    return mutated(source, data, TOKENS)


class Recorder:
    """A handler that notes every request, and answers it at once or later."""

    def __init__(self, late: bool) -> None:
        self.late = late
        self.seen: list[tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes, bool]] = []
        self.waiting: tuple[Connection, Head] | None = None
        self.refused = 0

    def on_head(self, head: Head) -> Refusal | None:
        return None

    def on_request(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        if self.waiting is not None:
            raise Broken("a second request while the first is in work")
        persistent = connection.keeps(head)
        self.seen.append((head.method, head.url, head.headers, bytes(body), persistent))
        if self.late:
            self.waiting = (connection, head)
            connection.exchange = self  # type: ignore[assignment]
        else:
            self._answer(connection, head)

    def answer_waiting(self) -> bool:
        """Answer the request in work, if there is one."""
        if self.waiting is None:
            return False
        (connection, head), self.waiting = self.waiting, None
        self._answer(connection, head)
        return True

    def _answer(self, connection: Connection, head: Head) -> None:
        only = head.method == b"HEAD"
        close = not connection.keeps(head)
        connection.respond(head, answer(200, b"%d" % len(self.seen), close=close, head_only=only))

    def on_refused(self, status: int) -> None:
        self.refused += 1

    def on_bug(self, error: Exception) -> None:
        raise Broken(f"a bug was caught: {error!r}") from error

    def client_gone(self) -> None:
        self.waiting = None

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Client:
    """The target: one server, a connection an input."""

    def __init__(self) -> None:
        self.loop = Loop()
        with running(self.loop):
            self.limits = Limits(headers_kib_max=4, body_mib_max=1)
            self.server = Server(Recorder(False), self.limits)

    def __call__(self, data: bytes) -> None:
        source = Source(data)
        late, stalls = source.one_in(3), source.one_in(4)
        sent = wire_bytes(source)
        with running(self.loop):
            self._run(sent, cut(source, sent), Recorder(late), stalls)

    def _run(self, sent: bytes, reads: list[bytes], handler: Recorder, stalls: bool) -> None:
        self.server.handler = handler
        connection = self.server()
        wire = Wire(self.loop, connection)
        connection.connection_made(wire)  # type: ignore[arg-type]
        whole = True
        for number, read in enumerate(reads):
            if stalls and number % 3 == 1:
                connection.pause_writing()
            whole = feed(connection, wire, read) and whole
            self._bounded(connection)
            if stalls and number % 3 == 2:
                connection.resume_writing()
            if number % 2:
                self.loop.run()
                handler.answer_waiting()
        if stalls:
            connection.resume_writing()
        self.loop.run()
        while handler.answer_waiting():
            self.loop.run()
        self._check(sent, wire, connection, handler)
        wire.lose(None)
        self.loop.run()
        if self.server.connections or self.server.lingering:
            raise Broken("a connection is left")

    def _bounded(self, connection: Connection) -> None:
        if len(connection._pending) > 2 * 65536 or connection._got > self.limits.body_mib_max << 20:
            raise Broken("more is kept than the limits allow")

    def _check(self, sent: bytes, wire: Wire, connection: Connection, handler: Recorder) -> None:
        statuses = check_answers(bytes(wire.out), [s[0] == b"HEAD" for s in handler.seen])
        finals = [status for status in statuses if status >= 200]
        if len(finals) != len(handler.seen) + handler.refused or handler.refused > 1:
            raise Broken(f"{finals} for {len(handler.seen)} requests, {handler.refused} refused")
        if handler.refused and not connection.closing:
            raise Broken("a refused connection goes on")
        compare(sent, handler)


def check_answers(out: bytes, heads: list[bool]) -> list[int]:
    """Statuses of the answers, each well-formed and whole."""
    statuses: list[int] = []
    at = finals = 0
    while at < len(out):
        bodiless = finals < len(heads) and heads[finals]
        found = response(out, at, closed=True, bodiless=bodiless)
        if found is None or not found.complete:
            raise Broken(f"half an answer: {out[at:]!r}")
        statuses.append(found.status)
        finals += found.status >= 200
        at = found.end
    return statuses


def compare(sent: bytes, handler: Recorder) -> None:
    """Raises Broken where h11 sees other requests than those we took."""
    if not handler.seen:
        return
    rest = sent
    for number, (method, url, headers, body, persistent) in enumerate(handler.seen):
        # Empty lines ahead are taken, as RFC 9112 recommends; h11 takes none.
        while rest.startswith(b"\r\n"):
            rest = rest[2:]
        peer = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        peer.receive_data(rest)
        head, theirs = _next(peer, number)
        if (head.method, head.target, theirs) != (method, url, body):
            raise Broken(f"we saw {method!r} {url!r} {body!r}, h11 {head!r} {theirs!r}")
        ours = [(n, _as_h11(n, v.strip(b" \t"))) for n, v in headers]
        if [(bytes(n), bytes(v)) for n, v in head.headers] != ours:
            raise Broken(f"we saw {ours!r}, h11 {list(head.headers)!r}")
        if number + 1 < len(handler.seen):
            if not persistent:
                raise Broken("a request behind the last one")
            if peer.their_state is h11.MUST_CLOSE and not _keeps_old(head):
                raise Broken("we go on with a connection that h11 would close")
            rest = peer.trailing_data[0]


def _as_h11(name: bytes, value: bytes) -> bytes:
    """A coding's name has no case, and h11 has one."""
    return value.lower() if name == b"transfer-encoding" else value


def _keeps_old(head: h11.Request) -> bool:
    """HTTP/1.0 by agreement: h11 closes always, we go on where the client asks and nothing speaks
    against it."""
    said = [
        v.strip().lower() for n, vs in head.headers if n == b"connection" for v in vs.split(b",")
    ]
    return head.http_version == b"1.0" and b"keep-alive" in said and b"close" not in said


def _next(peer: h11.Connection, number: int) -> tuple[h11.Request, bytes]:
    head: Any = None
    body = b""
    try:
        while True:
            event = peer.next_event()
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return head, body
            else:
                raise Broken(f"we took request {number}, h11 has {event!r}")
    except h11.RemoteProtocolError as error:
        raise Broken(f"h11 refuses request {number}, which we took: {error}") from error
