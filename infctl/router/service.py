"""The router as a process: sockets, signals, loops, drain."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from infctl import compose
from infctl.errors import TargetError, UsageError
from infctl.router import handover, recorder, tokenising, tracing, workers
from infctl.router.admin import Admin
from infctl.router.allocator import tune_allocator
from infctl.router.colleagues import Colleagues
from infctl.router.discovery import Discovery, from_urls
from infctl.router.driver import Router
from infctl.router.gate import Gate
from infctl.router.listening import BACKLOG, Sockets, is_loopback, printable
from infctl.router.metrics_page import MetricsPage
from infctl.router.reload import Reloader
from infctl.router.server import Server
from infctl.router.shared import Peers
from infctl.router.tls import AcceptingListener
from infctl.router.workers import Worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from infctl.router.credentials import Credentials
    from infctl.router.reload import Loaded
    from infctl.router.seams import Handler

_STALLS_S = 0.25
_LOOK_S = 0.1
_LOOK_HELD_S = 0.005
_PARTING_S = 1.0
_PARTING_TAKEN_S = 10.0
_TAKE_OVER_S = 60.0


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
    listens, for those who have the token in `admin_token_file`. With `take_over` the sockets come
    from the router that has them, if one runs. `workers` processes serve, started by the command
    line `argv` with the `worker` that each is. `record`: the file of the event log.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    endpoints: tuple[str, ...] = ()
    state: str | None = None
    admin: str
    admin_tcp: tuple[str, int] | None = None
    admin_token_file: str | None = None
    parent_pipe: bool = False
    speed: float = 1.0
    seed: int = 0
    log_format: str = "text"
    take_over: bool = False
    workers: int = 1
    argv: tuple[str, ...] = ()
    worker: Worker | None = None
    record: str | None = None
    record_mib_max: int = 1024


def run(load: Callable[[], Loaded], options: Options) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end. `load` reads the profile: now, and again
    when told to. Raises InputError, MachineError, UsageError."""
    import uvloop

    if options.workers > 1 and options.worker is None:
        workers.run(load, options)
        return
    tune_allocator()
    service = Service(load, options)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Runner would take SIGINT from the loop and raise KeyboardInterrupt after a clean drain,
        # unless it finds a handler other than Python's own.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        runner.run(service.run())


class Service:
    """A router, its listening sockets and its background loops."""

    def __init__(self, load: Callable[[], Loaded], options: Options) -> None:
        worker = self._worker = options.worker
        self._load = load if worker is None else workers.sharing(load, worker.count)
        self._loaded = self._load()
        self._options = options
        self._taken = handover.take(options.admin) if options.take_over and not worker else None
        given = worker.sockets if worker else self._taken.sockets if self._taken else {}
        self._sockets = Sockets(given)
        self._orphaned = False
        self._handed_over = False
        self._stop = asyncio.Event()
        self._servers: list[Server] = []
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        """Listen, serve, drain."""
        profile = self._loaded.profile
        router = self._router()
        discovery = Discovery(
            router, self._loaded.engines, profile.routing.health, self._options.speed
        )
        static = from_urls(self._options.endpoints)
        self._reloader = Reloader(
            router, discovery, self._loaded, self._load, self._options.admin_token_file
        )
        self._reloader.servers = self._servers
        credentials = self._reloader.read()
        self._signals(router)
        try:
            self._reloader.use(credentials)  # before anyone can connect
            sock = self._open(router, credentials)
            if router.colleagues is not None and self._worker and self._worker.patience_s:
                router.held = {n for s in await router.colleagues.stats() for n in s.held}
            discovery.update(static)
            self._start_loops(router, discovery)
            await self._patience(router)
            server = await self._listen(router, credentials, sock)
            self._spawn(self._announce(router))
            gc.collect()
            gc.freeze()
            # Requests make no cycles, so most young collections would find nothing.
            gc.set_threshold(50_000, 20, 100)
            await self._stop.wait()
            await self._drain(router, server)
        finally:
            self._close(discovery, router)

    def _router(self) -> Router:
        options, worker = self._options, self._worker
        profile, pipeline = self._loaded.profile, self._loaded.pipeline
        seed = (options.seed or time.time_ns()) + (worker.number if worker else 0)
        router = Router(
            pipeline, profile.routing, self._loaded.engines, seed,
            own_metrics_port=profile.observability.metrics_port is not None,
            speed=options.speed,
        )  # fmt: skip
        router.telemetry.open_log(options.log_format, time.time)
        router.tracing = tracing.start(profile, router.telemetry)
        router.tokenising = tokenising.start(profile, router)
        if worker is not None:
            router.peers = Peers(router.director, worker.memory, worker.number, worker.count)
            router.colleagues = Colleagues(worker.paths, worker.number)
        recorder.start(router, profile, options, seed)
        return router

    async def _patience(self, router: Router) -> None:
        """A router that takes another's place accepts nothing before it can serve."""
        patience_s = self._worker.patience_s if self._worker else _TAKE_OVER_S
        if self._worker is None and self._taken is None:
            return
        deadline = router.now() + patience_s
        while not _ready(router) and not self._stop.is_set():
            if router.now() > deadline:
                if self._taken is not None:
                    raise TargetError(
                        f"no endpoint was ready within {patience_s:.0f} s",
                        hint="The running router goes on. Without --take-over one starts anyway.",
                    )
                return
            await asyncio.sleep(0.02)

    def _signals(self, router: Router) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._worker is not None:
            loop.add_signal_handler(signal.SIGUSR1, self._hand_over)
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

    def _open(self, router: Router, credentials: Credentials) -> socket.socket:
        """Bind what clients connect to, so that a taken port is known at once."""
        sock = self._sockets.tcp("http", self._options.host, self._options.port)
        self._url = f"{'https' if credentials.server else 'http'}://{printable(sock)}"
        if credentials.keys is None and not is_loopback(sock):
            router.telemetry.log("no_keys", address=printable(sock), note="everyone is served")
        return sock

    async def _listen(
        self, router: Router, credentials: Credentials, sock: socket.socket
    ) -> Server:
        loop = asyncio.get_running_loop()
        server = self._server(router)
        await self._accept(server, sock, credentials)
        metrics_port = self._loaded.profile.observability.metrics_port
        if metrics_port is not None:
            pages = self._server(MetricsPage(router))
            sock = self._sockets.tcp("metrics", self._options.host, metrics_port)
            self._listeners.append(await loop.create_server(pages, sock=sock))
        await self._listen_admin(router, "admin", router.colleagues)
        if self._worker is not None:
            await self._listen_admin(router, f"worker-{self._worker.number}", None)
        if self._options.admin_tcp:
            await self._listen_admin_tcp(router, credentials, *self._options.admin_tcp)
        if self._worker is None:
            offer = handover.Offer(self._sockets, self._options.admin, self._hand_over)
            self._listeners.append(offer)
        self._sockets.close_unused()
        return server

    def _hand_over(self) -> None:
        """Another router serves from now on: accept nothing more, finish what is here."""
        self._handed_over = True
        for listener in self._listeners:
            listener.close()
        self._stop.set()

    async def _accept(self, server: Server, sock: socket.socket, found: Credentials) -> None:
        """Serve what connects to the socket: with TLS where there is a certificate."""
        listener: Listener
        if found.server is None and self._worker is None:
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(server, sock=sock, backlog=BACKLOG)
        else:
            # One connection at a time: a loop's own server would take all there are, and leave
            # none for other workers.
            sock.listen(BACKLOG)
            listener = AcceptingListener(sock, server, found.server)
            self._reloader.listeners.append(listener)
        self._listeners.append(listener)

    def _server(self, handler: Handler) -> Server:
        server = Server(handler, self._reloader.profile.routing.limits)
        self._servers.append(server)
        return server

    async def _listen_admin(self, router: Router, name: str, colleagues: Colleagues | None) -> None:
        sock = self._sockets.unix(name, Path(self._options.admin))
        server = self._server(self._admin(router, colleagues))
        # From Python 3.13 on a server that closes removes its socket, here perhaps a successor's.
        keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        listener = await asyncio.get_running_loop().create_unix_server(server, sock=sock, **keep)
        self._listeners.append(listener)

    def _admin(self, router: Router, colleagues: Colleagues | None) -> Admin:
        reloader = self._reloader
        table = lambda: compose.route_table(reloader.profile)  # noqa: E731
        return Admin(router, table, reloader.answer, colleagues)

    async def _listen_admin_tcp(
        self, router: Router, credentials: Credentials, host: str, port: int
    ) -> None:
        """The admin API for those who have its token: with TLS where the router has it."""
        gate = self._reloader.gate = Gate(self._admin(router, router.colleagues))
        gate.expected = credentials.token or b""
        server = self._server(gate)
        sock = self._sockets.tcp("admin-tcp", host, port, "--admin-tcp")
        if credentials.server is None and not is_loopback(sock):
            raise UsageError(
                "the admin token would cross the network in clear",
                where="--admin-tcp",
                hint="Give the profile a certificate (routing.tls), or listen on 127.0.0.1.",
            )
        await self._accept(server, sock, credentials)
        router.telemetry.log("admin_tcp", address=printable(sock))

    def _start_loops(self, router: Router, discovery: Discovery) -> None:
        follow = self._reloader.follow_files()
        work = [
            _sweep(router, self._servers),
            _watch_stalls(router),
            follow,
        ]
        if router.peers is not None:
            work.append(_follow_peers(router))
        if self._options.state:
            lengths = {m.name: m.context_tokens or 0 for m in self._loaded.profile.models}
            work.append(discovery.follow_state(self._options.state, lengths))
        if self._options.parent_pipe:
            work.append(self._until_end_of_input())
        for each in work:
            self._spawn(each)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._loop_ended)
        self._tasks.append(task)

    def _loop_ended(self, task: asyncio.Task[Any]) -> None:
        """A background loop must not die unseen."""
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a router loop died", "exception": task.exception()}
            )
            self._stop.set()

    async def _announce(self, router: Router) -> None:
        while not _ready(router):
            await asyncio.sleep(0.02)
        if self._taken is not None:
            await asyncio.to_thread(self._taken.confirm)
        print(f"ready {self._url}", flush=True)

    async def _until_end_of_input(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while await reader.read(4096):
            pass
        self._orphaned = True
        self._stop.set()

    async def _drain(self, router: Router, server: Server) -> None:
        """Accept nothing more, let streams finish up to the deadline, report what is cut."""
        self._listeners[0].close()
        server.drain(_PARTING_TAKEN_S if self._handed_over else _PARTING_S)
        deadline = router.now() + self._reloader.profile.routing.drain_s / self._options.speed
        while (router.exchanges or server.working) and router.now() < deadline:
            await asyncio.sleep(0.05)
            server.sweep()
        cut = sum(1 for e in router.exchanges.values() if e.started)
        router.telemetry.log("drained", cut=cut, refused=len(router.exchanges) - cut)
        router.end("the router is shutting down")

    def _close(self, discovery: Discovery, router: Router) -> None:
        for task in self._tasks:
            task.cancel()
        discovery.close()
        for listener in self._listeners:
            listener.close()
        if router.tracing is not None:
            router.tracing.close()
        if router.tokenising is not None:
            router.tokenising.close()
        unconfirmed = self._taken is not None and not self._taken.confirmed
        if self._handed_over or unconfirmed or (self._worker and not self._orphaned):
            self._sockets.leave()
        else:
            self._sockets.close()
        if router.recorder is not None:
            router.recorder.close()
        router.telemetry.flush()


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


async def _follow_peers(router: Router) -> None:
    """Look at the other workers now and then, also while nothing arrives here."""
    while True:
        await asyncio.sleep(_LOOK_HELD_S if len(router.director.flow) else _LOOK_S)
        if router.peers is not None:
            router.peers.look(router.now(), router.handle)
        if router.keys is not None:
            router.keys.look(router.now())


def _ready(router: Router) -> bool:
    return bool(router.director.fleet.ready.any())
