"""Units as processes of this machine, each under a supervisor of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from infctl import state
from infctl.actuator import DesiredUnit, Diff, UnitStatus
from infctl.actuators.startup import Launch, plan_of
from infctl.errors import MachineError

Progress = Callable[[UnitStatus], None]

_LOOK_S = 0.1
_PORT_ATTEMPTS = 3
_STOP_S = 15.0
"""How long a supervisor may take to stop its unit: its grace and some more."""


class Interrupted(Exception):
    """Whoever waits for the units was told to stop."""


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class LocalActuator:
    """The units of one fleet on this machine.

    `pause(seconds)` waits and returns True when the work is to be given up; `attached` units end
    with this process, however it ends. One process at a time may apply: hold `state.lock`.
    """

    def __init__(
        self,
        fleet: str,
        *,
        pause: Callable[[float], bool] = _sleep,
        attached: bool = True,
        start_s: float = 1800.0,
    ) -> None:
        self.fleet = fleet
        self._pause = pause
        self._attached = attached
        self._start_s = start_s
        self._launches: dict[str, Launch] = {}

    def observe(self) -> tuple[UnitStatus, ...]:
        """The units that exist now, each with its newest status."""
        units = state.load(self.fleet).units
        return tuple(unit for unit in units if unit.state != state.STOPPED)

    def plan(self, desired: tuple[DesiredUnit, ...]) -> Diff:
        """What is missing, what is too much, what runs in another revision."""
        running = {unit.name: unit.revision for unit in self.observe()}
        wanted = {unit.name for unit in desired}
        return Diff(
            start=tuple(u for u in desired if u.name not in running),
            stop=tuple(name for name in running if name not in wanted),
            restart=tuple(u for u in desired if running.get(u.name, u.revision) != u.revision),
        )

    def apply(self, diff: Diff, progress: Progress | None = None) -> None:
        """Stop, then start, and wait until all that starts is ready.

        Raises MachineError, TargetError or Interrupted, and then stops what it had started.
        """
        self.stop([*diff.stop, *(unit.name for unit in diff.restart)])
        starting = [*diff.restart, *diff.start]
        try:
            for unit in starting:
                self._launch(unit)
            self._save()
            self._wait_ready([unit.name for unit in starting], progress or (lambda _: None))
        except BaseException:
            self.stop([unit.name for unit in starting])
            raise

    def stop(self, names: Iterable[str]) -> None:
        """Stop units by name and wait until nothing of them is left."""
        names = list(names)
        for name in names:
            if launch := self._launches.get(name):
                launch.stop()
        for name in names:
            if launch := self._launches.pop(name, None):
                _wait_stopped(launch.process)
            else:
                self._stop_foreign(name)
        self._save()

    def stop_all(self) -> None:
        """Stop every unit this actuator started."""
        self.stop(list(self._launches))

    def statuses(self) -> tuple[UnitStatus, ...]:
        """The newest status of every unit this actuator started."""
        for launch in self._launches.values():
            launch.look()
        return tuple(launch.status for launch in self._launches.values())

    def _launch(self, desired: DesiredUnit) -> None:
        self._stop_foreign(desired.name)
        plan = plan_of(self.fleet, desired, attached=self._attached, start_s=self._start_s)
        self._launches[desired.name] = Launch(self.fleet, desired, plan)

    def _wait_ready(self, names: list[str], progress: Progress) -> None:
        attempts = dict.fromkeys(names, 1)
        waiting = set(names)
        while waiting:
            for name in sorted(waiting):
                launch = self._launches[name]
                gone = launch.failed
                if launch.look():
                    progress(launch.status)
                if launch.status.state == "ready":
                    waiting.remove(name)
                elif gone and launch.port_taken and attempts[name] < _PORT_ATTEMPTS:
                    attempts[name] += 1
                    self._launch(launch.desired)
                    self._save()
                elif gone:
                    raise launch.error()
            if waiting and self._pause(_LOOK_S):
                raise Interrupted

    def _stop_foreign(self, name: str) -> None:
        """End a unit that an earlier command left: detached, or not yet quite gone."""
        written = state.load_unit(self.fleet, name)
        if written is None:
            return
        pid, started = written.status.supervisor_pid, written.started
        deadline = time.monotonic() + _STOP_S
        while state.alive(pid, started):
            late_s = time.monotonic() - deadline
            if late_s > _STOP_S:
                raise MachineError(f"process {pid}, an earlier unit {name}, cannot be ended")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late_s > 0 else signal.SIGTERM)
            time.sleep(_LOOK_S)

    def _save(self) -> None:
        fleet = state.load(self.fleet)
        mine = {name: launch.status for name, launch in self._launches.items()}
        others = tuple(u for u in fleet.units if u.name not in mine and u.state != state.STOPPED)
        state.save(msgspec.structs.replace(fleet, units=(*others, *mine.values())))


def _wait_stopped(supervisor: subprocess.Popen[bytes]) -> None:
    try:
        supervisor.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()  # its guard ends the unit
        supervisor.wait()
