"""The router in process: a loop whose time stands still, and wires in place of sockets.

Everything is the product's but the event loop and the transports, so an input costs no system
call, plays the same every time, and what an exception in a callback would have been told to a log
is found here.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from infctl import compose
from infctl.core.fleet import Endpoint, State
from infctl.profile.model import Profile
from infctl.router.driver import Router
from infctl.router.server import Connection, Server
from infctl.router.upstream import Link

from .shadow import Shadow

_STEPS_MAX = 20_000

_QUIET, _KEPT_OPEN = os.pipe()


class Broken(AssertionError):
    """Something that must hold does not."""


class Loop:
    """As much of an event loop as the router uses. Time moves only by `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.errors: list[dict[str, Any]] = []
        self.connect: Callable[[int], Wire | OSError | None] = lambda port: None
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)  # type: ignore[arg-type]
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        timer = asyncio.TimerHandle(when, callback, args, self, context)  # type: ignore[arg-type]
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self)  # type: ignore[arg-type]

    async def create_connection(
        self, factory: Callable[[], Link], host: str, port: int, ssl: Any = None
    ) -> tuple[Wire, Link]:
        refusal = self.connect(port)
        if isinstance(refusal, OSError):
            raise refusal
        link = factory()
        wire = Wire(self, link)
        link.connection_made(wire)  # type: ignore[arg-type]
        self.made(port, link, wire)
        return wire, link

    def made(self, port: int, link: Link, wire: Wire) -> None:
        """A connection to an engine; the world listens here."""

    def run(self) -> None:
        """Everything that is ready, and what becomes so meanwhile."""
        for _ in range(_STEPS_MAX):
            if not self._ready:
                self._check()
                return
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        raise Broken("the loop does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                timer._run()
            self.run()
        self.now = end

    def _check(self) -> None:
        if self.errors:
            found, self.errors = self.errors[0], []
            raise Broken(f"an exception in a callback: {found}") from found.get("exception")


class Wire:
    """A transport whose other end is the test."""

    def __init__(self, loop: Loop, protocol: Any) -> None:
        self.loop, self.protocol = loop, protocol
        self.out = bytearray()
        self.closing = self.aborted = self.ended = self.lost = False
        self.reading = True
        self.stuck = 0

    def get_extra_info(self, name: str) -> int:
        """A descriptor that never has anything to read."""
        return _QUIET

    def write(self, data: bytes) -> None:
        if self.ended:
            raise Broken("bytes written behind the end")
        if not self.closing:
            self.out += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self.aborted = self.aborted or not self.closing
        self.close()

    def lose(self, error: Exception | None) -> None:
        """The connection is gone."""
        self.closing = True
        if not self.lost:
            self.lost = True
            self.protocol.connection_lost(error)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def get_write_buffer_size(self) -> int:
        return self.stuck


def feed(connection: Connection, wire: Wire, data: bytes) -> bool:
    """Bytes from a client; False when they are not read any more."""
    at = 0
    while at < len(data):
        if wire.closing or not wire.reading:
            return False
        buffer = connection.get_buffer(65536)
        if not len(buffer):
            raise Broken("no room to read into: the transport would close the connection")
        size = min(len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size
    return True


@contextmanager
def running(loop: Loop) -> Iterator[None]:
    """`loop` as the one that runs."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)  # type: ignore[arg-type]
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class Upstream:
    """One connection to an engine, from the engine's side."""

    def __init__(self, port: int, link: Link, wire: Wire) -> None:
        self.port, self.link, self.wire = port, link, wire

    def take(self) -> bytes:
        """What the router sent since the last call."""
        data = bytes(self.wire.out)
        self.wire.out.clear()
        return data

    def say(self, data: bytes) -> None:
        """Bytes from the engine."""
        if data and not self.wire.closing:
            self.link.data_received(data)

    def end(self, error: Exception | None = None) -> None:
        """The engine closes, or resets."""
        if not self.wire.lost:
            self.wire.lose(error)


LIMITS = {"body_mib_max": 1, "headers_kib_max": 4, "stream_idle_s": 20, "first_byte_s": 60}


class World:
    """A router with `engines` of one kind, its server, and both sides of every connection."""

    def __init__(self, engines: int = 3, kind: str = "vllm") -> None:
        routing = {"limits": LIMITS, "retry_share": 1.0, "attempts_max": 3, "picker": "round-robin"}
        routing |= {"hedge_share": 0.5}
        profile = Profile.model_validate(
            {
                "metadata": {"name": "fuzz"},
                "models": [{"name": "m"}],
                "pools": [{"name": "p"}],
                "routing": routing,
            }
        )
        self.loop = Loop()
        self.upstreams: list[Upstream] = []
        self.bugs: list[Exception] = []
        self.loop.made = self._made  # type: ignore[method-assign]
        with running(self.loop):
            kinds = {name: compose.engine(name) for name in compose.names("engine")}
            self.router = Router(compose.pipeline(profile), profile.routing, kinds, seed=1)
            self.router.decide = Shadow(self.router.director, profile, seed=1).handle
            self.server = Server(self.router, profile.routing.limits)
            self.router.on_bug = self.bugs.append  # type: ignore[method-assign]
            self.router.on_policy_bug = self.bugs.append  # type: ignore[method-assign]
            self.router.director.admission.on_bug = self.bugs.append
            self.urls = [f"http://127.0.0.1:{1000 + n}" for n in range(engines)]
            for url in self.urls:
                one = Endpoint(unit=url[7:], url=url, models=("m",), engine=kind)
                self.router.join(one, State.READY)

    def _made(self, port: int, link: Link, wire: Wire) -> None:
        self.upstreams.append(Upstream(port, link, wire))

    def client(self) -> tuple[Connection, Wire]:
        """One more client."""
        connection = self.server()
        wire = Wire(self.loop, connection)
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire

    def settle(self) -> None:
        """Run until nothing more happens by itself."""
        self.loop.run()
        if self.bugs:
            bug = self.bugs.pop()
            self.bugs.clear()
            raise Broken(f"a bug was caught: {bug!r}") from bug

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and have the sweeps see it."""
        self.loop.advance(seconds)
        self.router.sweep()
        self.server.sweep()
        self.settle()

    def end(self) -> None:
        """Everyone leaves; then nothing may be left of them. The fleet is made well again."""
        for connection in (*self.server.connections, *self.server.lingering):
            connection.transport.lose(None)  # type: ignore[attr-defined]
        self.settle()
        self.check_empty()
        for upstream in self.upstreams:
            upstream.end()
        self.upstreams.clear()
        self.settle()
        fleet = self.router.director.fleet
        for slot, endpoint in fleet:
            if fleet.states[slot] is not State.READY:
                self.router.change(endpoint.id, State.READY, "the next input")

    def check_empty(self) -> None:
        """No trace of a request that is over."""
        router, director = self.router, self.router.director
        left = {
            "exchanges": len(router.exchanges),
            "flights": len(director.flights),
            "in flight": float(director.fleet.inflight.sum()),
            "pending": sum(director.fleet.cells["pending"]),
            "kept bytes": router.telemetry.kept_bytes,
            "tasks": len(router._tasks),
            "connections": len(self.server.connections) + len(self.server.lingering),
            "receivers": sum(u.link.receiver is not None for u in self.upstreams),
        }
        if any(left.values()):
            raise Broken(f"something is left: {left}")


def quietly(work: Callable[[], None]) -> None:
    """For clean-up whose failure would hide the one that matters."""
    with suppress(Exception):
        work()
