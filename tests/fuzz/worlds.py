"""The whole router between clients and engines that do anything, at any byte, in any order.

Every request and every answer carries a mark of its own; a mark at the wrong client or in the
wrong request is a leak. What clients get is read strictly, and so is what engines get.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from infctl.router.server import Connection

from .clients import HEADERS
from .harness import Broken, Upstream, Wire, World, feed, quietly, running
from .source import Source, cut, mutated
from .streams import TOKENS, framed, good, odd
from .strict import Malformed, Message, request, response

MARK = re.compile(rb"~mark[0-9]+x~")
PATHS = (b"/v1/completions", b"/v1/chat/completions", b"/v1/responses", b"/v1/embeddings")
HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n",
    b"HTTP/1.1 304 Not\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close, x-named\r\n"
    b"X-Named: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\nX-B: \xe9\r\n\r\n{}",
    b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 099 Odd\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    b"",
)  # fmt: skip
ROW_TOKENS = (
    *TOKENS, b"\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"Content-Length: 1\r\n", b"\x00", b"0\r\n\r\n",
    b"5",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b": ", b"ffffffffffffffff",
)  # fmt: skip


QUESTIONED = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"count":1}',
    b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"prompt":"ab"}',
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 3000,
)


class Sent(NamedTuple):
    """One request of a client."""

    mark: bytes
    data: bytes
    stream: bool


class Caller:
    """A client: what it sends, and where what it gets is gathered."""

    def __init__(self, world: World) -> None:
        self.connection, self.wire = world.client()
        self.sent: list[Sent] = []
        self.left = self.full = False
        self.whole = True

    def send(self, made: Sent, reads: list[bytes]) -> None:
        """Send a request, in reads."""
        self.sent.append(made)
        for read in reads:
            self.whole = feed(self.connection, self.wire, read) and self.whole


class Asked(NamedTuple):
    """A request that reached an engine, and the answer it is to get, in pieces."""

    upstream: Upstream
    mark: bytes
    pieces: list[bytes]
    said: list[bytes]


def a_request(source: Source, mark: bytes) -> Sent:
    """A good request with its mark in every part, and things that must not go on."""
    path, stream = source.pick(PATHS), not source.one_in(4)
    body: dict[str, Any] = {"model": "m", "stream": stream, "user": mark.decode()}
    body["prompt"] = body["messages"] = [{"role": "user", "content": mark.decode()}]
    if path == PATHS[0]:
        body["prompt"] = mark.decode() + "a" * source.pick((0, 10, 3000))
    if source.one_in(3):
        body["kv_transfer_params"] = {"a": 1}
    if source.one_in(4):
        body |= source.pick(
            ({"stop": 5}, {"stream_options": "x"}, {"max_tokens": "many"}, {"n": 2})
        )
    text = json.dumps(body).encode()
    version = b"1.0" if source.one_in(8) else b"1.1"
    rows = [b"Host: a", b"X-Mark: " + mark, b"X-Data-Parallel-Rank: 3", b"X-A: " + mark]
    if source.one_in(4):
        rows.append(source.pick(HEADERS[2:9]))
    if version == b"1.1" and source.one_in(4):
        rows.append(b"Transfer-Encoding: chunked")
        text = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    else:
        rows.append(b"Content-Length: %d" % len(text))
    if source.one_in(4):
        rows.append(b"Connection: x-a")
    line = b"POST %s?m=%s HTTP/%s" % (path, mark, version)
    return Sent(mark, b"\r\n".join([line, *rows]) + b"\r\n\r\n" + text, stream)


def an_answer(source: Source, mark: bytes) -> bytes:
    """What an engine says: mostly a stream, sometimes anything."""
    how = source.below(8)
    if how < 5:
        head = HEADS[0] if how < 4 else source.pick(HEADS)
        ids, usage = source.one_in(2), source.one_in(2)
        stream = (odd if source.one_in(4) else good)(source, ids, usage)
        data = framed(source, b'data: {"choices":[{"text":"%s"}]}\n\n' % mark + stream.payload)
        data = head + data
    else:
        data = source.pick(HEADS) + mark
        if how == 5:
            text = b'{"id":"%s","usage":{"prompt_tokens":3}}' % mark
            data = (
                b"HTTP/1.1 200 OK\r\nX-M: %s\r\nContent-Length: %d\r\n\r\n" % (mark, len(text))
                + text
            )
    data = mutated(source, data, ROW_TOKENS, 2) if source.one_in(2) else data
    return HEADS[2] if ambiguous(data) else data


def ambiguous(said: bytes) -> bool:
    """Whether a chunk holds what looks like a chunk's end behind an event's: bytes that no engine
    sends, and that the tap takes for one."""
    at = max(said.find(b"\r\n\r\n") + 4, said.find(b"\r\n\r\n", said.find(b"200 OK")) + 4)
    while at < len(said):
        line = said.find(b"\r\n", at)
        try:
            size = int(said[at:line].partition(b";")[0], 16)
        except ValueError:
            return False
        at = line + 2
        if b"\n\n\r\n" in said[at : at + size]:
            return True
        at += size + 2
    return False


class Scene:
    """One input: clients and engines, and what each does when."""

    def __init__(self, world: World, source: Source) -> None:
        self.world, self.source = world, source
        self.callers: list[Caller] = []
        self.asked: list[Asked] = []
        self.marks = 0

    def play(self) -> None:
        """Until the bytes have run out, then to the end of everything."""
        self._call()
        for _ in range(40):
            if not self.source.left:
                break
            self._act()
        self._finish()

    def _act(self) -> None:
        how = self.source.below(16)
        if how < 7:
            self._say(self.source.below(4))
        elif how == 7 and len(self.callers) < 4:
            self._call()
        elif how in (8, 9):
            self._hang_up(OSError("reset") if how == 9 else None)
        else:
            self._client_acts(how)
        self._settle()

    def _client_acts(self, how: int) -> None:
        caller = self.source.pick(self.callers)
        if how == 10 and not caller.left and not caller.wire.lost:
            caller.left = True
            caller.wire.lose(None)
        elif how == 11 and not caller.wire.lost and not caller.full:
            caller.full, caller.wire.stuck = True, 1 << 20
            caller.connection.pause_writing()
        elif how == 12 and not caller.wire.lost and caller.full:
            caller.full, caller.wire.stuck = False, 0
            caller.connection.resume_writing()
        elif how == 13:
            self.world.pass_time(self.source.pick((0.5, 5.0, 30.0)))
        elif how == 14:
            refusal = ConnectionRefusedError("no") if self.source.one_in(2) else None
            self.world.loop.connect = lambda port: refusal
        elif how == 15 and len(caller.sent) < 3 and not caller.left:
            self._send(caller)

    def _call(self) -> None:
        caller = Caller(self.world)
        self.callers.append(caller)
        self._send(caller)
        self._settle()

    def _send(self, caller: Caller) -> None:
        self.marks += 1
        made = a_request(self.source, b"~mark%dx~" % (self.marks * 0x9E3779B1))
        caller.send(made, cut(self.source, made.data))

    def _settle(self) -> None:
        self.world.settle()
        for upstream in self.world.upstreams:
            data = upstream.take()
            if data:
                self._asks(upstream, data)
        for caller in self.callers:
            self._held_up(caller)

    def _held_up(self, caller: Caller) -> None:
        """While a client does not read, its engine is not read either."""
        exchange: Any = caller.connection.exchange
        links = [leg.link for leg in exchange.legs()] if exchange is not None else []
        read = [link for link in links if link is not None and link.transport.reading]
        if caller.full and not caller.wire.lost and read:
            raise Broken("an engine is read for a client that does not read")

    def _asks(self, upstream: Upstream, data: bytes) -> None:
        found = request(data)
        for asked in self.asked:
            if asked.upstream is upstream:
                # The connection was free again: what is left lay behind the end of that answer.
                # An engine that still said it would answer the wrong request, for all to see.
                asked.pieces.clear()
        marks = set(MARK.findall(data))
        if found.line[1] in (b"/tokenize", b"/detokenize"):
            if len(marks) > 1:
                raise Broken(f"a question with the marks {marks}")
            answer = self.source.pick(QUESTIONED)
            self.asked.append(Asked(upstream, b"", cut(self.source, answer), []))
            return
        if len(marks) != 1:
            raise Broken(f"a request with the marks {marks}")
        mark = marks.pop()
        names = {name for name, _ in found.headers}
        sent = next(s for c in self.callers for s in c.sent if s.mark == mark)
        if b"x-data-parallel-rank" in names or b"kv_transfer_params" in found.body:
            raise Broken("what the router owns reached an engine")
        if b"Connection: x-a" in sent.data and b"x-a" in names:
            raise Broken("what Connection names reached an engine")
        json.loads(found.body)
        answer = an_answer(self.source, mark)
        self.asked.append(Asked(upstream, mark, cut(self.source, answer), []))

    def _say(self, pieces: int) -> None:
        waiting = [a for a in self.asked if a.pieces and not a.upstream.wire.lost]
        if waiting:
            asked = self.source.pick(waiting)
            for _ in range(min(pieces + 1, len(asked.pieces))):
                self._piece(asked)

    def _piece(self, asked: Asked) -> None:
        piece = asked.pieces.pop(0)
        if asked.upstream.wire.closing:
            return
        asked.said.append(piece)
        asked.upstream.say(piece)

    def _hang_up(self, error: Exception | None) -> None:
        if self.world.upstreams:
            self.source.pick(self.world.upstreams).end(error)

    def _finish(self) -> None:
        self.world.loop.connect = lambda port: None
        for caller in self.callers:
            if caller.full and not caller.wire.lost:
                caller.full, caller.wire.stuck = False, 0
                caller.connection.resume_writing()
        for _ in range(60):
            self._settle()
            waiting = [a for a in self.asked if a.pieces and not a.upstream.wire.lost]
            for asked in waiting:
                self._piece(asked)
            if not waiting:
                break
        self._settle()
        for upstream in self.world.upstreams:
            upstream.end()
        self._settle()
        for _ in range(24):
            self.world.pass_time(70.0)
            self._settle()
            if not self.world.router.exchanges:
                break
        for caller in self.callers:
            self._check(caller)

    def _check(self, caller: Caller) -> None:
        out, own = bytes(caller.wire.out), {s.mark for s in caller.sent}
        others = {s.mark for c in self.callers for s in c.sent} - own
        foreign = others.intersection(MARK.findall(out))
        if foreign:
            raise Broken(f"a client got what is another's: {foreign} in {out!r}")
        at = finals = 0
        while at < len(out):
            found = response(out, at, closed=not caller.wire.aborted)
            if found is None:
                raise Broken(f"half a head: {out[at:]!r}")
            finals += found.status >= 200
            if not found.complete and not (caller.left or caller.wire.lost or caller.wire.closing):
                raise Broken(f"half an answer on an open connection: {out[at:]!r}")
            named = {name for name, _ in found.headers} >= {b"x-named"}
            if named and not any(odd_names(b"".join(a.said)) for a in self.asked):
                raise Broken("what an engine's Connection names reached a client")
            if found.complete and found.status == 200:
                self._earned(found, own)
            at = found.end
        gone = caller.left or caller.wire.closing or caller.connection.closing
        if finals > len(caller.sent) or (finals < len(caller.sent) and not gone):
            raise Broken(f"{finals} answers to {len(caller.sent)} requests: {out!r}")

    def _earned(self, found: Message, own: set[bytes]) -> None:
        """A whole 200 is a whole answer of an engine, or one that says it is broken off."""
        if b"stream broken off" in found.body or b"[DONE]" in found.body:
            return
        for asked in self.asked:
            if asked.mark in own and whole(b"".join(asked.said)):
                return
        raise Broken(f"a whole answer that no engine gave: {found.body!r}")


def odd_names(said: bytes) -> bool:
    """Whether mutation made `X-Named` a header that is not named."""
    return b"X-Named" in said and b"\nConnection: close, x-named\r\nX-Named: 1\r\n" not in said


def whole(said: bytes) -> bool:
    """Whether an engine said a whole answer, as a lenient reader sees it."""
    at = 0
    while True:
        end = said.find(b"\r\n\r\n", at)
        if end < 0:
            return False
        head = said[at:end].lower()
        at = end + 4
        if re.match(rb"http/1\.[01] [01]", head) is None:
            break
    if re.match(rb"http/1\.[01] (204|304)", head):
        return True
    length = re.search(rb"\r\ncontent-length:[ \t]*([0-9]+)", head)
    if b"\r\ntransfer-encoding:" in head:
        try:
            found = response(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + said[at:], 0, True
            )
        except Malformed:
            return False
        return found is not None and found.complete
    return length is None or len(said) - at >= int(length[1])


class Worlds:
    """The target: a router for each kind of engine, and a scene an input."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[World, int]] = {}

    def __call__(self, data: bytes) -> None:
        source = Source(data)
        kind = source.pick(("vllm", "sglang", "openai"))
        world, count = self.made.get(kind) or (World(3, kind), 0)
        self.made[kind] = (world, count + 1)
        with running(world.loop):
            try:
                Scene(world, source).play()
                world.end()
            except BaseException:
                quietly(lambda: self.made.pop(kind) and None)
                raise
        if count >= 5000:
            self.made.pop(kind)


__all__ = ["Connection", "Scene", "Wire", "Worlds"]
