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
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from infctl import compose
from infctl.errors import MachineError, UsageError
from infctl.router import tokenising, tracing
from infctl.router.admin import Admin
from infctl.router.discovery import Discovery, from_urls
from infctl.router.driver import Router
from infctl.router.gate import Gate
from infctl.router.reload import Reloader
from infctl.router.server import Server
from infctl.router.tls import TlsListener

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.router.credentials import Credentials
    from infctl.router.keys import Refusal
    from infctl.router.reload import Loaded
    from infctl.router.seams import Handler

_BACKLOG = 4096
_STALLS_S = 0.25
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1


class Listener(Protocol):
    """A socket that accepts connections."""

    def close(self) -> None:
        """Accept nothing more."""
        ...


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to run: where to listen, which endpoints, and what stops it.

    Endpoints are `endpoints` (URLs) or the units of the fleet `state`. `parent_pipe`: stop when
    standard input ends. `speed`: engines run this many times faster than life, so probe faster.
    `admin` is the path of the admin API's Unix socket, `admin_tcp` a host and port where it also
    listens, for those who have the token in `admin_token_file`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    endpoints: tuple[str, ...] = ()
    state: str | None = None
    admin: str | None = None
    admin_tcp: tuple[str, int] | None = None
    admin_token_file: str | None = None
    parent_pipe: bool = False
    speed: float = 1.0
    seed: int = 0
    log_format: str = "text"


def run(load: Callable[[], Loaded], options: Options) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end. `load` reads the profile: now, and again
    when told to. Raises InputError, MachineError, UsageError."""
    import uvloop

    _tune_allocator()
    service = Service(load, options)
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

    def __init__(self, load: Callable[[], Loaded], options: Options) -> None:
        self._load = load
        self._loaded = load()
        self._options = options
        self._stop = asyncio.Event()
        self._servers: list[Server] = []
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        """Listen, serve, drain."""
        options, profile = self._options, self._loaded.profile
        metrics_port = profile.observability.metrics_port
        router = Router(
            self._loaded.pipeline, profile.routing, self._loaded.engines,
            options.seed or time.time_ns(), own_metrics_port=metrics_port is not None,
            speed=options.speed,
        )  # fmt: skip
        router.telemetry.open_log(options.log_format, time.time)
        router.tracing = tracing.start(profile, router.telemetry)
        router.tokenising = tokenising.start(profile, router)
        discovery = Discovery(router, self._loaded.engines, profile.routing.health, options.speed)
        static = from_urls(options.endpoints)
        self._reloader = Reloader(
            router, discovery, self._loaded, self._load, options.admin_token_file
        )
        self._reloader.servers = self._servers
        credentials = self._reloader.read()
        self._signals(router)
        try:
            self._reloader.use(credentials)  # before anyone can connect
            server = await self._listen(router, credentials, metrics_port)
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

    def _signals(self, router: Router) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        attended = os.isatty(0)

        def hang_up() -> None:
            """A request to reload, unless it says that the terminal this runs in is gone."""
            if attended and not os.isatty(0):
                self._stop.set()
            else:
                router.spawn(self._reload())

        loop.add_signal_handler(signal.SIGHUP, hang_up)

    async def _reload(self) -> None:
        await self._reloader.answer()

    async def _listen(
        self, router: Router, credentials: Credentials, metrics_port: int | None
    ) -> Server:
        loop = asyncio.get_running_loop()
        server = self._server(router)
        sock = _bind(self._options.host, self._options.port)
        self._url = f"{'https' if credentials.server else 'http'}://{_printable(sock)}"
        if credentials.keys is None and not _is_loopback(sock):
            router.telemetry.log("no_keys", address=_printable(sock), note="everyone is served")
        await self._accept(server, sock, credentials)
        if metrics_port is not None:
            pages = self._server(_MetricsPage(router))
            sock = _bind(self._options.host, metrics_port)
            self._listeners.append(await loop.create_server(pages, sock=sock))
        if self._options.admin:
            await self._listen_admin(router, Path(self._options.admin))
        if self._options.admin_tcp:
            await self._listen_admin_tcp(router, credentials, *self._options.admin_tcp)
        return server

    async def _accept(self, server: Server, sock: socket.socket, found: Credentials) -> None:
        """Serve what connects to the socket: with TLS where there is a certificate."""
        listener: Listener
        if found.server is None:
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(server, sock=sock, backlog=_BACKLOG)
        else:
            sock.listen(_BACKLOG)
            listener = TlsListener(sock, server, found.server)
            self._reloader.listeners.append(listener)
        self._listeners.append(listener)

    def _server(self, handler: Handler) -> Server:
        server = Server(handler, self._reloader.profile.routing.limits)
        self._servers.append(server)
        return server

    async def _listen_admin(self, router: Router, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o177)
        try:
            server = self._server(self._admin(router))
            listener = await asyncio.get_running_loop().create_unix_server(server, str(path))
        except OSError as error:
            raise MachineError(
                f"cannot open the admin socket: {error.strerror or error}", where=str(path)
            ) from error
        finally:
            os.umask(mask)
        self._listeners.append(listener)

    def _admin(self, router: Router) -> Admin:
        reloader = self._reloader
        return Admin(router, lambda: compose.route_table(reloader.profile), reloader.answer)

    async def _listen_admin_tcp(
        self, router: Router, credentials: Credentials, host: str, port: int
    ) -> None:
        """The admin API for those who have its token: with TLS where the router has it."""
        gate = self._reloader.gate = Gate(self._admin(router))
        gate.expected = credentials.token or b""
        server = self._server(gate)
        sock = _bind(host, port, "--admin-tcp")
        if credentials.server is None and not _is_loopback(sock):
            sock.close()
            raise UsageError(
                "the admin token would cross the network in clear",
                where="--admin-tcp",
                hint="Give the profile a certificate (routing.tls), or listen on 127.0.0.1.",
            )
        await self._accept(server, sock, credentials)
        router.telemetry.log("admin_tcp", address=_printable(sock))

    def _start_loops(self, router: Router, discovery: Discovery) -> None:
        follow = self._reloader.follow_files()
        work = [
            _sweep(router, self._servers),
            _watch_stalls(router),
            self._announce(router),
            follow,
        ]
        if self._options.state:
            lengths = {m.name: m.context_tokens or 0 for m in self._loaded.profile.models}
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
        deadline = router.now() + self._reloader.profile.routing.drain_s / self._options.speed
        while (router.exchanges or server.working) and router.now() < deadline:
            await asyncio.sleep(0.05)
        cut = sum(1 for e in router.exchanges.values() if e.started)
        router.telemetry.log("drained", cut=cut, refused=len(router.exchanges) - cut)
        router.end("the router is shutting down")

    def _close(self, discovery: Discovery, router: Router) -> None:
        for task in self._tasks:
            task.cancel()
        discovery.close()
        for listener in self._listeners:
            listener.close()
        if self._options.admin:
            with suppress(OSError):
                Path(self._options.admin).unlink()
        if router.tracing is not None:
            router.tracing.close()
        if router.tokenising is not None:
            router.tokenising.close()
        router.telemetry.flush()


class _MetricsPage:
    """A seams.Handler that knows /metrics alone."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def on_head(self, head: Any) -> Refusal | None:
        """Whoever reaches the port may look."""
        return None

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


async def _watch_stalls(router: Router) -> None:
    while True:
        await asyncio.sleep(_STALLS_S)
        router.stalls.check(router.now())


async def _until_end_of_input(stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while await reader.read(4096):
        pass
    stop.set()


def _bind(host: str, port: int, option: str = "--port") -> socket.socket:
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
            hint=f"Choose another with {option}, or 0 for any free one.",
        ) from error
    return sock


def _is_loopback(sock: socket.socket) -> bool:
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _printable(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
