"""The router as a process: sockets, signals, loops, drain."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.errors import MachineError
from infctl.router.admin import Admin
from infctl.router.discovery import Discovery, from_urls
from infctl.router.driver import Router
from infctl.router.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infctl.core.scheduling import Pipeline
    from infctl.engine import Engine
    from infctl.profile.model import Profile
    from infctl.router.server import Handler

_BACKLOG = 4096
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to run: where to listen, which endpoints, and what stops it.

    Endpoints are `endpoints` (URLs) or the units of the fleet `state`. `parent_pipe`: stop when
    standard input ends. `speed`: engines run this many times faster than life, so probe faster.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    endpoints: tuple[str, ...] = ()
    state: str | None = None
    admin: str | None = None
    parent_pipe: bool = False
    speed: float = 1.0
    seed: int = 0
    log_format: str = "text"


def run(
    profile: Profile,
    pipeline: Pipeline,
    engines: Mapping[str, Engine],
    options: Options,
    route_table: Callable[[], Any],
) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end. Raises MachineError, UsageError."""
    import uvloop

    _tune_allocator()
    service = Service(profile, pipeline, engines, options, route_table)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Runner would take SIGINT from the loop and raise KeyboardInterrupt after a clean drain,
        # unless it finds a handler other than Python's own.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        runner.run(service.run())


def _tune_allocator() -> None:
    """Keep large bodies on the heap: glibc would map and unmap each one, which costs more than
    handling it. Elsewhere than on glibc this does nothing."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


class Service:
    """A router, its listening sockets and its background loops."""

    def __init__(
        self,
        profile: Profile,
        pipeline: Pipeline,
        engines: Mapping[str, Engine],
        options: Options,
        route_table: Callable[[], Any],
    ) -> None:
        self._profile = profile
        self._pipeline = pipeline
        self._engines = engines
        self._options = options
        self._route_table = route_table
        self._stop = asyncio.Event()
        self._servers: list[Server] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        """Listen, serve, drain."""
        routing = self._profile.routing
        metrics_port = self._profile.observability.metrics_port
        router = Router(
            self._pipeline, routing, self._engines, self._options.seed or time.time_ns(),
            own_metrics_port=metrics_port is not None,
        )  # fmt: skip
        router.telemetry.open_log(self._options.log_format, time.time)
        discovery = Discovery(router, self._engines, routing.health, self._options.speed)
        static = from_urls(self._options.endpoints)
        self._signals()
        try:
            server = await self._listen(router, metrics_port)
            discovery.update(static)
            self._start_loops(router, discovery)
            gc.collect()
            gc.freeze()
            # Requests make no cycles, so most young collections would find nothing.
            gc.set_threshold(50_000, 20, 100)
            await self._stop.wait()
            await self._drain(router, server)
        finally:
            self._close(discovery, router)

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _listen(self, router: Router, metrics_port: int | None) -> Server:
        loop = asyncio.get_running_loop()
        server = self._server(router)
        sock = _bind(self._options.host, self._options.port)
        self._url = f"http://{_printable(sock)}"
        self._listeners.append(await loop.create_server(server, sock=sock, backlog=_BACKLOG))
        if metrics_port is not None:
            pages = self._server(_MetricsPage(router))
            sock = _bind(self._options.host, metrics_port)
            self._listeners.append(await loop.create_server(pages, sock=sock))
        if self._options.admin:
            await self._listen_admin(router, Path(self._options.admin))
        return server

    def _server(self, handler: Handler) -> Server:
        server = Server(handler, self._profile.routing.limits)
        self._servers.append(server)
        return server

    async def _listen_admin(self, router: Router, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o177)
        try:
            server = self._server(Admin(router, self._route_table))
            listener = await asyncio.get_running_loop().create_unix_server(server, str(path))
        except OSError as error:
            raise MachineError(
                f"cannot open the admin socket: {error.strerror or error}", where=str(path)
            ) from error
        finally:
            os.umask(mask)
        self._listeners.append(listener)

    def _start_loops(self, router: Router, discovery: Discovery) -> None:
        work = [_sweep(router, self._servers), self._announce(router)]
        if self._options.state:
            lengths = {m.name: m.context_tokens or 0 for m in self._profile.models}
            work.append(discovery.follow_state(self._options.state, lengths))
        if self._options.parent_pipe:
            work.append(_until_end_of_input(self._stop))
        self._tasks = [asyncio.get_running_loop().create_task(w) for w in work]
        for task in self._tasks:
            task.add_done_callback(self._loop_ended)

    def _loop_ended(self, task: asyncio.Task[Any]) -> None:
        """A background loop must not die unseen."""
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a router loop died", "exception": task.exception()}
            )
            self._stop.set()

    async def _announce(self, router: Router) -> None:
        while not bool(router.director.fleet.ready.any()):
            await asyncio.sleep(0.02)
        print(f"ready {self._url}", flush=True)

    async def _drain(self, router: Router, server: Server) -> None:
        """Accept nothing more, let streams finish up to the deadline, report what is cut."""
        self._listeners[0].close()
        server.drain()
        deadline = router.now() + self._profile.routing.drain_s / self._options.speed
        while (router.exchanges or server.working) and router.now() < deadline:
            await asyncio.sleep(0.05)
        cut = list(router.exchanges.values())
        router.telemetry.log("drained", cut=len(cut))
        for exchange in cut:
            exchange.cut("the router is shutting down")

    def _close(self, discovery: Discovery, router: Router) -> None:
        for task in self._tasks:
            task.cancel()
        discovery.close()
        for listener in self._listeners:
            listener.close()
        if self._options.admin:
            with suppress(OSError):
                Path(self._options.admin).unlink()
        router.telemetry.flush()


class _MetricsPage:
    """A server.Handler that knows /metrics alone."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def on_refused(self, status: int) -> None:
        """Malformed scrapes are answered, not counted."""

    def on_bug(self, error: Exception) -> None:
        """Log what a scrape ran into."""
        self._router.telemetry.bug("scrape", error)

    def on_request(self, connection: Any, head: Any, body: bytes | bytearray) -> None:
        """Answer one scrape."""
        from infctl.router.wire import answer

        found = head.url.partition(b"?")[0] == b"/metrics"
        text = self._router.metrics() if found else b""
        kind = self._router.telemetry.CONTENT_TYPE
        connection.respond(head, answer(200 if found else 404, text, content_type=kind))


async def _sweep(router: Router, servers: list[Server]) -> None:
    while True:
        await asyncio.sleep(1.0)
        router.sweep()
        for server in servers:
            server.sweep()


async def _until_end_of_input(stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while await reader.read(4096):
        pass
    stop.set()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise MachineError(
            f"cannot listen: {reason}",
            where=f"{host}:{port}",
            hint="Choose another with --port, or 0 for any free one.",
        ) from error
    return sock


def _printable(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
