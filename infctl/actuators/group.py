"""The processes of one unit: one group that lives and dies as a whole.

A guard, forked from the supervisor, leads the group and holds a pipe from it. If the supervisor is
killed the pipe ends and the guard kills the group, itself included. On Linux each rank is told to
die with the supervisor as well, and what left the group comes back to the supervisor as a child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_DESCRIPTORS_MAX = 4096

Rank: TypeAlias = "subprocess.Popen[bytes]"

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux)."""
    if _libc is not None:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class ProcessGroup:
    """A unit's processes, from one start to the next."""

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self._guard, self._pipe = _fork_guard()

    def spawn(self, argv: Sequence[str], env: Mapping[str, str]) -> Rank:
        """Start a rank; its output comes through its `stdout`. Raises OSError."""
        supervisor = os.getpid()

        def die_with_supervisor() -> None:
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if _libc is not None:
                _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)

        rank = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=self._guard,
            preexec_fn=die_with_supervisor,  # safe: the supervisor has one thread
        )
        self.ranks.append(rank)
        return rank

    def terminate(self) -> None:
        """Ask every rank to end. Its children are its own business: engines that let their work
        finish need them until then, and what they leave is killed with the group."""
        for rank in self.ranks:
            if rank.poll() is None:
                with suppress(ProcessLookupError):
                    rank.send_signal(signal.SIGTERM)
                    rank.send_signal(signal.SIGCONT)  # one that is stopped would not hear it

    def kill(self) -> None:
        """End every process at once, and wait until they are gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard, signal.SIGKILL)
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self._guard, 0)
        for rank in self.ranks:
            rank.wait()
        for orphan in orphans(known=()):
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(orphan, 0)

    def exited(self) -> list[tuple[int, int]]:
        """(rank, exit code) of the ranks that ended; reaps orphans that ended, too."""
        for orphan in orphans(known={self._guard, *(rank.pid for rank in self.ranks)}):
            with suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
        codes = ((index, rank.poll()) for index, rank in enumerate(self.ranks))
        return [(index, code) for index, code in codes if code is not None]


def orphans(known: Iterable[int]) -> list[int]:
    """Children of this process that are not `known`; none where the system does not tell."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
            children = {int(child) for child in stream.read().split()}
    except OSError:
        return []
    return sorted(children - set(known))


def _fork_guard() -> tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _guard(read)
    os.close(read)
    with suppress(OSError):  # the guard may have come first
        os.setpgid(pid, pid)
    return pid, write


def _guard(read: int) -> None:
    """Wait for the supervisor's end, then kill the group. Never returns."""
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, read)
        os.closerange(read + 1, _DESCRIPTORS_MAX)
        os.read(read, 1)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
