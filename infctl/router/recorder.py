"""`--record`: everything the Director is told, and what it did, into a file.

The event loop encodes into a buffer, about a microsecond an event; each second, or as soon as a
chunk is full, a thread writes it, so that a slow disk delays nobody. Whatever goes wrong with the
file ends the recording and nothing else, and what was written by then can be read.
"""

from __future__ import annotations

import os
import stat
import time
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from infctl import provenance
from infctl.core import events as ev
from infctl.core.eventlog import FORMAT, Ended, Records, header_line
from infctl.errors import InfctlError, MachineError, UsageError
from infctl.router.shared import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.core.commands import Command
    from infctl.core.director import Director
    from infctl.core.eventlog import Header
    from infctl.profile.model import Profile
    from infctl.router.driver import Router
    from infctl.router.service import Options

_CHUNK_BYTES = 1 << 18
_BEHIND_BYTES = 64 << 20
_CLOSE_S = 5.0
_BEGIN = 200


def check(path: str) -> None:
    """Whether a log can be there. Raises MachineError, and UsageError where something else is."""
    folder = os.path.dirname(path) or "."
    if not os.path.lexists(path):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise MachineError("the folder cannot be written to, or is not there", where=path)
        return
    begin = b""
    try:
        if _is_file(path):
            with open(path, "rb") as file:
                begin = file.read(_BEGIN)
    except OSError as error:
        raise MachineError(f"cannot be opened: {error.strerror}", where=path) from error
    if begin and FORMAT.encode() not in begin:
        raise UsageError("this file is no event log", where=path, hint="Name another one.")


def claim(path: str) -> int:
    """Open the file of a new log, for its owner alone; a log that is there already becomes
    `PATH.old`. Raises as `check`."""
    check(path)
    flags, mode = os.O_WRONLY | os.O_CLOEXEC, 0o600
    try:
        if os.path.lexists(path):
            if not _is_file(path):
                return os.open(path, flags)  # a pipe, or a device
            os.replace(path, f"{path}.old")
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise MachineError(f"cannot be written: {error.strerror}", where=path) from error


def _is_file(path: str) -> bool:
    return stat.S_ISREG(os.stat(path).st_mode)


class _Writer(Thread):
    """Writes what it is given. `written` bytes so far; `error` once it has given up."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="recorder", daemon=True)
        self.written = 0
        self.error = ""
        self.queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._descriptor = descriptor
        self.start()

    def run(self) -> None:
        while (data := self.queue.get()) is not None:
            if not self.error:
                self._write(memoryview(data))
        os.close(self._descriptor)

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                count = os.write(self._descriptor, data)
                self.written += count
                data = data[count:]
        except OSError as error:
            self.error = error.strerror or str(error)


class Recorder:
    """Stands between a router and its Director. `on_stop` is told why the recording ended before
    it was closed. `bytes_max` bounds the file."""

    def __init__(
        self,
        director: Director,
        descriptor: int,
        header: Header,
        bytes_max: int,
        on_stop: Callable[[str], None],
    ) -> None:
        self.running = True
        self._director = director
        self._bytes_max = bytes_max
        self._on_stop = on_stop
        self._records = Records()
        self._writer = _Writer(descriptor)
        self._given = 0
        self._give(header_line(header))

    @property
    def written_bytes(self) -> int:
        """What is in the file."""
        return self._writer.written

    def handle(self, event: ev.Event, now: float) -> list[Command]:
        """`Director.handle`, recorded. Raises what a policy raises."""
        if not self.running:
            return self._director.handle(event, now)
        records = self._records
        try:
            records.begin(now, event)
        except ValueError as error:
            self.stop(f"an event cannot be recorded: {error}")
            return self._director.handle(event, now)
        try:
            commands = self._director.handle(event, now)
        except Exception as error:
            records.end(type(error).__name__)
            raise
        try:
            records.end(commands)
        except ValueError as error:
            self.stop(f"a command cannot be recorded: {error}")
            return commands
        if len(records.buffer) > _CHUNK_BYTES or type(event) is ev.Tick:
            self._flush()
        return commands

    def policy_changed(self, profile: Profile, now: float) -> None:
        """The Director goes by another profile from now on."""
        if not self.running:
            return
        try:
            self._records.begin(now, provenance.policy(profile))
            self._records.end([])
        except ValueError as error:
            self.stop(f"a profile cannot be recorded: {error}")

    def _flush(self) -> None:
        if self._writer.error:
            self.stop(self._writer.error)
        elif self._given - self._writer.written > _BEHIND_BYTES:
            self.stop("the disk is too slow")
        elif self._given + len(self._records.buffer) > self._bytes_max:
            self._records.take()
            self.stop(f"the file has reached {self._bytes_max >> 20} MiB")
        else:
            self._give(self._records.take())

    def _give(self, data: bytes) -> None:
        self._given += len(data)
        self._writer.queue.put(data)

    def stop(self, reason: str) -> None:
        """Record no more; what has been written stays."""
        self._end(reason)
        self._on_stop(reason)

    def _end(self, reason: str) -> None:
        self.running = False
        self._records.begin(0.0, Ended(reason))
        self._records.end([])
        self._give(self._records.take())
        self._writer.queue.put(None)

    def close(self) -> None:
        """Write what there is, and that this is all."""
        if self.running:
            self._flush()
        if self.running:
            self._end("the router ended")
        self._writer.join(_CLOSE_S)


def start(router: Router, profile: Profile, options: Options, seed: int) -> None:
    """Record what a router does from now on, each of several workers in a file of its own. Raises
    as `check`, except in a worker: one that is started anew has to serve."""
    worker, path = options.worker, options.record
    if path is None:
        return
    if worker is not None:
        path = f"{path}.{worker.number}"
    try:
        descriptor = claim(path)
    except InfctlError as error:
        if worker is None:
            raise
        router.telemetry.log("recording_stopped", file=path, reason=str(error))
        return
    header = provenance.header(
        profile,
        seed=seed,
        speed=options.speed,
        wall_s=time.time(),
        now=router.now(),
        worker=worker.number if worker else 0,
        shared_slots=SLOTS if worker else 0,
    )
    stopped = lambda why: router.telemetry.log("recording_stopped", file=path, reason=why)  # noqa: E731
    made = Recorder(router.director, descriptor, header, options.record_mib_max << 20, stopped)
    router.recorder = router.telemetry.recorder = made
    router.decide = made.handle
    router.telemetry.log("recording", file=path)
