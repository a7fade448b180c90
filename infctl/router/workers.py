"""Several workers for one router: processes that accept from the same sockets.

The parent opens the sockets and the memory the workers share, starts the workers, starts those anew
that end, and passes on signals. It serves nothing, so nothing that a client sends can hurt it. If
it is killed, the workers see the end of their standard input, drain and end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.errors import TargetError
from infctl.router import handover, recorder, shared
from infctl.router.accesslog import Log
from infctl.router.listening import BACKLOG, Sockets
from infctl.router.reload import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.router.service import Options

_READY = b"ready "
_TAKE_OVER_S = 60.0
_AT_ONCE_S = 0.0
_PATIENCE_S = 10.0
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0
_STEADY_S = 30.0
_FAILURES_MAX = 8
_KILL_S = 5.0


class Worker(msgspec.Struct, frozen=True):
    """One worker: its `number` of `count`, the descriptors of its sockets and of the memory that
    all share, the admin sockets of all, and how long it waits for an endpoint before it accepts."""

    number: int
    count: int
    sockets: dict[str, int]
    memory: int
    paths: tuple[str, ...]
    patience_s: float = 0.0


def sharing(load: Callable[[], Loaded], count: int) -> Callable[[], Loaded]:
    """The same profile with each worker's share of what bounds them all together."""

    def shares() -> Loaded:
        loaded = load()
        routing = loaded.profile.routing
        limits, flow = routing.limits, routing.flow
        part = {
            "limits": limits.model_copy(
                update={
                    "connections_max": -(-limits.connections_max // count),
                    "continuation_mib_max": limits.continuation_mib_max // count,
                }
            ),
            "flow": flow.model_copy(update={"queue_max": -(-flow.queue_max // count)}),
        }
        profile = loaded.profile.model_copy(update={"routing": routing.model_copy(update=part)})
        return msgspec.structs.replace(loaded, profile=profile)

    return shares


def run(load: Callable[[], Loaded], options: Options) -> None:
    """Serve with several workers until told to stop. Raises InfctlError, or SystemExit with the
    exit code of a worker that failed."""
    code = asyncio.run(Parent(load(), options).run())
    if code:
        raise SystemExit(code)


class _Process:
    """One worker's process and what is known of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.running: asyncio.subprocess.Process | None = None
        self.url = ""
        self.failures = 0


class Parent:
    """Starts workers and keeps them running."""

    def __init__(self, loaded: Loaded, options: Options) -> None:
        self._options = options
        self._routing = loaded.profile.routing
        self._taken = handover.take(options.admin) if options.take_over else None
        self._sockets = Sockets(self._taken.sockets if self._taken else None)
        self._log = Log(options.log_format, sys.stderr, time.time)
        self._stop = asyncio.Event()
        self._handed_over = False
        self._code = 0
        self._processes = [_Process(number) for number in range(options.workers)]
        self._memory = -1
        self._open(loaded)

    def _open(self, loaded: Loaded) -> None:
        options = self._options
        self._sockets.tcp("http", options.host, options.port)
        port = loaded.profile.observability.metrics_port
        if port is not None:
            self._sockets.tcp("metrics", options.host, port)
        if options.admin_tcp:
            self._sockets.tcp("admin-tcp", *options.admin_tcp, option="--admin-tcp")
        if options.record is not None:
            for number in range(options.workers):
                recorder.check(f"{options.record}.{number}")
        names = [f"worker-{number}" for number in range(options.workers)]
        paths = [f"{options.admin}.{os.getpid()}.{number}" for number in range(options.workers)]
        for name, path in (("admin", options.admin), *zip(names, paths, strict=True)):
            self._sockets.unix(name, Path(path)).listen(BACKLOG)
        self._sockets.close_unused()
        self._paths = tuple(paths)
        self._memory = shared.create(options.workers)

    async def run(self) -> int:
        """Keep workers running until told to stop; returns the exit code."""
        self._signals()
        keepers = [asyncio.create_task(self._keep(process)) for process in self._processes]
        announcer = asyncio.create_task(self._announce())
        try:
            await self._stop.wait()
            if announcer.done() and announcer.exception() is not None:
                await announcer
        finally:
            announcer.cancel()
            await self._end(keepers)
        return self._code

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        attended = os.isatty(0)

        def hang_up() -> None:
            if attended and not os.isatty(0):
                self._stop.set()
            else:
                self._tell(signal.SIGHUP)

        loop.add_signal_handler(signal.SIGHUP, hang_up)
        if self._options.parent_pipe:
            self._input = loop.create_task(self._until_end_of_input())

    async def _until_end_of_input(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while await reader.read(4096):
            pass
        self._stop.set()

    # --- workers ----------------------------------------------------------------------------------

    async def _keep(self, process: _Process) -> None:
        """Run one worker, and another one when it ends."""
        patience_s = _AT_ONCE_S if self._taken is None else 10 * _TAKE_OVER_S
        while not self._stop.is_set():
            started = time.monotonic()
            code = await self._run_once(process, patience_s)
            shared.clear(self._memory, process.number, len(self._processes))
            if self._stop.is_set():
                self._ended(code)
                return
            if time.monotonic() - started > _STEADY_S:
                process.failures = 0
            process.failures += 1
            self._say("worker_ended", worker=process.number, code=code, failures=process.failures)
            refused = code in (2, 3, 4) and not process.url
            if refused or process.failures >= _FAILURES_MAX:
                self._code = code if code > 0 else 1
                self._stop.set()
                return
            patience_s = _PATIENCE_S
            pause_s = min(_PAUSE_FIRST_S * 2 ** (process.failures - 1), _PAUSE_MAX_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)

    async def _run_once(self, process: _Process, patience_s: float) -> int:
        found = self._sockets.descriptors()
        own = f"worker-{process.number}"
        keep = {n: fd for n, fd in found.items() if not n.startswith("worker-") or n == own}
        keep.pop("offer", None)
        worker = Worker(
            process.number, len(self._processes), keep, self._memory, self._paths, patience_s
        )
        spec = msgspec.json.encode(worker).decode()
        running = process.running = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "infctl", *self._options.argv,
            "--worker", spec, "--parent-pipe",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            pass_fds=(*keep.values(), self._memory),
        )  # fmt: skip
        assert running.stdout is not None
        while line := await running.stdout.readline():
            if line.startswith(_READY):
                process.url = line[len(_READY) :].decode().strip()
        return await running.wait()

    def _ended(self, code: int) -> None:
        """A worker ended as it was told to, or, if not, with a code worth passing on."""
        if code not in (0, -signal.SIGTERM):
            self._code = self._code or (code if code > 0 else 1)

    async def _announce(self) -> None:
        """Say that all workers are ready, and from then on offer the sockets to a successor."""
        try:
            deadline = time.monotonic() + _TAKE_OVER_S
            while not all(process.url for process in self._processes):
                await asyncio.sleep(0.02)
                if self._taken is not None and time.monotonic() > deadline:
                    raise TargetError(
                        f"no endpoint was ready within {_TAKE_OVER_S:.0f} s",
                        hint="The running router goes on. Without --take-over one starts anyway.",
                    )
            if self._taken is not None:
                await asyncio.to_thread(self._taken.confirm)
            self._offer = handover.Offer(self._sockets, self._options.admin, self._hand_over)
            print(f"ready {self._processes[0].url}", flush=True)
        except Exception:
            self._stop.set()
            raise

    def _hand_over(self) -> None:
        self._handed_over = True
        self._tell(signal.SIGUSR1)
        self._stop.set()

    def _tell(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.running is not None and process.running.returncode is None:
                with suppress(ProcessLookupError):
                    process.running.send_signal(number)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        """Let workers drain and end; kill those that do not."""
        if not self._handed_over:
            self._tell(signal.SIGTERM)
        elsewhere = self._handed_over or (self._taken is not None and not self._taken.confirmed)
        self._sockets.close(keep=handover.KEPT if elsewhere else ())
        drain_s = self._routing.drain_s / self._options.speed + _KILL_S
        _, late = await asyncio.wait(keepers, timeout=drain_s)
        if late:
            self._tell(signal.SIGKILL)
            await asyncio.wait(late, timeout=_KILL_S)
        os.close(self._memory)
        self._log.flush()

    def _say(self, kind: str, **fields: Any) -> None:
        self._log.event(kind, fields)
        self._log.flush()
