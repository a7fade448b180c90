"""A unit on its way up: its supervisor, its log, and what went wrong if it does not get there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infctl import compose, state
from infctl.actuator import DesiredUnit, UnitStatus
from infctl.actuators.plan import SupervisorPlan
from infctl.actuators.ports import free_ports
from infctl.errors import InfctlError, MachineError, TargetError

if TYPE_CHECKING:
    from infctl.engine import Engine, UnitSpec

_READ_BYTES = 256 * 1024
_PORT_TAKEN = re.compile(r"address already in use|EADDRINUSE|\[Errno (98|48)\]", re.IGNORECASE)
_NO_MODULE = re.compile(r"No module named ['\"]?([\w.]+)")


class Launch:
    """One start of one unit. `process` is its supervisor; closing its stdin ends the unit."""

    def __init__(self, fleet: str, desired: DesiredUnit, plan: SupervisorPlan) -> None:
        self.desired = desired
        self.engine = compose.engine(desired.engine)
        self.status = plan.status
        self._fleet = fleet
        self._log = _Tail(Path(plan.status.logs[0]))
        self._phase = plan.status.phase
        folder = state.unit_path(fleet, desired.name)
        file = folder / "plan.json"
        state.write(file, msgspec.json.encode(plan))
        with open(folder / "supervisor.log", "wb", opener=state.private) as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "infctl.actuators.supervisor", str(file)],
                stdin=subprocess.PIPE if plan.attached else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def look(self) -> bool:
        """Take in what happened since; True if anything of the status changed."""
        before = self.status
        written = state.load_unit(self._fleet, self.desired.name)
        # The file of an earlier start is there until this supervisor has written its own.
        if written and written.status.supervisor_pid == self.process.pid:
            self.status = written.status
        for line in self._log.lines():
            self._phase = self.engine.phase(line) or self._phase
        if self.status.state == "starting":
            self.status = msgspec.structs.replace(self.status, phase=self._phase)
        if self.failed and self.status.state != state.STOPPED:
            self._supervisor_lost()
        return self.status != before

    def stop(self) -> None:
        """Ask the unit to stop; does not wait."""
        if self.process.stdin:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()

    def _supervisor_lost(self) -> None:
        """It ended without a word, as by SIGKILL, and its unit with it."""
        self.status = msgspec.structs.replace(
            self.status,
            state=state.STOPPED,
            phase=state.STOPPED,
            pids=(),
            error=self._supervisor_error(),
        )

    @property
    def failed(self) -> bool:
        """Whether the unit was given up (only true after a `look`)."""
        return self.process.poll() is not None

    @property
    def port_taken(self) -> bool:
        """Whether it failed because another process took its port first."""
        return bool(_PORT_TAKEN.search(self.status.error or ""))

    def error(self) -> InfctlError:
        """Why the unit did not start."""
        unit, text = self.desired.name, self.status.error or self._supervisor_error()
        missing = _NO_MODULE.search(text)
        if missing and missing[1].split(".")[0] == self.desired.engine:
            return no_engine(self.desired, self.engine, f"has no package {self.desired.engine}")
        what, _, lines = text.partition("\n")
        return TargetError(
            f"the engine of unit {unit} did not start: {what} while {self._phase}"
            + (f"\n{lines}" if lines else ""),
            hint=f"Its whole log: {self.status.logs[0]}",
        )

    def _supervisor_error(self) -> str:
        file = state.unit_path(self._fleet, self.desired.name) / "supervisor.log"
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        return "\n".join(["its supervisor ended", *(f"  {line}" for line in lines[-5:])])


class _Tail:
    """New lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        try:
            size = self._path.stat().st_size
            if size < self._offset:  # rotated
                self._offset = 0
            if size == self._offset:
                return []
            with self._path.open("rb") as stream:
                stream.seek(max(self._offset, size - _READ_BYTES))
                data = stream.read(_READ_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = size - (len(data) - len(whole))
        return whole.decode("utf-8", "replace").splitlines()


def plan_of(fleet: str, desired: DesiredUnit, *, attached: bool, start_s: float) -> SupervisorPlan:
    """The supervisor's orders for a unit, on ports that are free now.

    Raises MachineError when the engine's program is not on this machine, InputError when the
    engine refuses its arguments.
    """
    engine = compose.engine(desired.engine)
    spec = _with_ports(desired.spec)
    ranks = engine.commands(spec)
    for rank in ranks:
        if shutil.which(rank.argv[0]) is None:
            raise no_engine(desired, engine, "is not there or cannot be run", rank.argv[0])
    folder = state.create(state.unit_path(fleet, desired.name))
    return SupervisorPlan(
        status=_first_status(fleet, desired, spec, len(ranks)),
        ranks=ranks,
        folder=str(folder),
        host=spec.host,
        port=spec.port,
        health_path=engine.health_path,
        attached=attached,
        start_s=start_s,
    )


def _with_ports(spec: UnitSpec) -> UnitSpec:
    port, master = free_ports(2, spec.host)
    return msgspec.structs.replace(
        spec,
        port=spec.port or port,
        master_port=spec.master_port or (master if spec.nodes > 1 else 0),
    )


def _first_status(fleet: str, desired: DesiredUnit, spec: UnitSpec, ranks: int) -> UnitStatus:
    folder = state.unit_path(fleet, desired.name)
    before = state.load_unit(fleet, desired.name)
    return UnitStatus(
        name=desired.name,
        pool=desired.pool,
        cluster=desired.cluster,
        role=desired.role,
        engine=desired.engine,
        models=desired.models,
        revision=desired.revision,
        generation=before.status.generation if before else 0,
        state="starting",
        phase="starting",
        url=f"http://{spec.host}:{spec.port}",
        rtt_ms=desired.rtt_ms,
        logs=tuple(str(folder / f"rank-{rank}.log") for rank in range(ranks)),
    )


def no_engine(
    desired: DesiredUnit, engine: Engine, what: str, program: str | None = None
) -> MachineError:
    """The engine's program is missing: which, and how to say where it is."""
    variable = f", or {engine.python_env} in the environment," if engine.python_env else ""
    return MachineError(
        f"unit {desired.name}: {program or desired.spec.python} {what}",
        where="engine.python",
        hint=f"Set engine.python{variable} to the Python of {desired.engine}'s own environment.",
    )
