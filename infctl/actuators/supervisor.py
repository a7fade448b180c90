"""The supervisor of one unit: `python -m infctl.actuators.supervisor PLAN`.

It owns the unit's processes, their logs and their restart, and writes the unit's status. One
thread, few imports: there is one for every unit of the machine. It ends the unit on SIGTERM, and an
attached one when its standard input ends, which happens however the command that holds it ends.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from infctl.actuator import RESTART_FILE, RestartRequest, UnitStatus
from infctl.actuators.group import ProcessGroup, adopt_orphans
from infctl.actuators.logs import RankLog
from infctl.actuators.plan import SupervisorPlan
from infctl.actuators.probe import HealthProbe

_READ_BYTES = 65536
_IDLE_S = 30.0
_LOOK_S = 1.0
"""How often a ready unit's supervisor looks for a request to restart it."""


# How the unit's state is written; `infctl.core.fleet.State` is too heavy to import here.
STARTING, READY, DRAINING = "starting", "ready", "draining"
EJECTED, STOPPED = "ejected", "stopped"


class Supervisor:
    """A unit's life: started, watched, restarted, stopped."""

    def __init__(self, plan: SupervisorPlan, started: float) -> None:
        self.plan = plan
        self.status = plan.status
        self.done = False
        self.exit_code = 0
        self._started = started
        self._selector = selectors.DefaultSelector()
        folder = Path(plan.folder)
        self._file = folder / "status.json"
        self._requests = folder / RESTART_FILE
        self._logs = [
            RankLog(folder / f"rank-{rank}.log", plan.log_bytes_max)
            for rank in range(len(plan.ranks))
        ]
        self._group: ProcessGroup | None = None
        self._probe: HealthProbe | None = None
        self._failures = 0
        self._patience = 0
        self._ready_at = 0.0
        self._deadline = 0.0
        self._ever_ready = False
        self._stop_asked = False

    # --- the loop ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the unit until it is stopped or given up; the exit code."""
        self._watch_signals()
        if self.plan.attached:
            self._selector.register(0, selectors.EVENT_READ, self._input)
        self._start()
        while not self.done:
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            self._tick(time.monotonic())
        return self.exit_code

    def _watch_signals(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._ask_to_stop())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(read, selectors.EVENT_READ, lambda: _drain(read))

    def _ask_to_stop(self) -> None:
        self._stop_asked = True

    def _input(self) -> None:
        if not os.read(0, 1024):
            self._selector.unregister(0)
            self._ask_to_stop()

    def _timeout_s(self) -> float:
        if self.status.state == STARTING:
            return self.plan.poll_s
        if self.status.state == READY:
            return min(_LOOK_S, self.plan.check_s, self.plan.liveness_s)
        if self._deadline:
            return max(0.0, self._deadline - time.monotonic())
        return _IDLE_S

    def _tick(self, now: float) -> None:
        if self._stop_asked:
            self._stop()
        if self.done:
            return
        match self.status.state:
            case "starting":
                self._tick_starting(now)
            case "ready":
                self._tick_ready(now)
            case "draining":
                self._tick_draining(now)
            case "ejected" if now >= self._deadline:
                self._start()

    # --- starting ---------------------------------------------------------------------------------

    def _start(self) -> None:
        plan, now = self.plan, time.monotonic()
        self._group = ProcessGroup()
        self._probe = self._new_probe(plan.poll_s, plan.poll_timeout_s)
        _take(self._requests)  # it concerned an earlier generation
        self._deadline = now + plan.start_s
        try:
            for index in range(len(plan.ranks)):
                self._spawn(index)
        except OSError as error:
            self._failed(f"cannot be started: {error}", now)
            return
        pids = tuple(rank.pid for rank in self._group.ranks)
        self._write(
            state=STARTING,
            phase=STARTING,
            pids=pids,
            generation=self.status.generation + 1,
        )

    def _new_probe(self, interval_s: float, timeout_s: float) -> HealthProbe:
        plan = self.plan
        address = (plan.host, plan.port)
        return HealthProbe(self._selector, address, plan.health_path, interval_s, timeout_s)

    def _spawn(self, index: int) -> None:
        assert self._group is not None
        command, log = self.plan.ranks[index], self._logs[index]
        log.forget()
        env = {"PYTHONUNBUFFERED": "1", **os.environ, **command.env}
        rank = self._group.spawn(command.argv, env)
        assert rank.stdout is not None
        descriptor = rank.stdout.fileno()
        os.set_blocking(descriptor, False)
        self._selector.register(
            descriptor, selectors.EVENT_READ, lambda: self._read(descriptor, log)
        )

    def _read(self, descriptor: int, log: RankLog) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            log.write(data)
        else:
            self._selector.unregister(descriptor)

    def _tick_starting(self, now: float) -> None:
        assert self._probe is not None
        if self._ended(now):
            return
        if self._probe.healthy:
            self._ready_at, self._deadline, self._ever_ready = now, 0.0, True
            self._watch_liveness()
            self._write(state=READY, phase=READY, error=None)
        elif now >= self._deadline:
            self._failed(f"is not ready after {self.plan.start_s:.0f} s", now)
        else:
            self._probe.poll(now)

    # --- failing ----------------------------------------------------------------------------------

    def _tick_ready(self, now: float) -> None:
        if self._failures and now - self._ready_at >= self.plan.restart.steady_s:
            self._failures = 0
        if self._ended(now) or self._asked(now):
            return
        assert self._probe is not None
        self._probe.poll(now)
        if self._probe.healthy and self._patience != self.plan.liveness_failures:
            self._watch_liveness()
        if self._probe.failures >= self._patience:
            self._failed(f"answered none of {self._probe.failures} health probes", now)

    def _watch_liveness(self) -> None:
        if self._probe is not None:
            self._probe.close()
        self._probe = self._new_probe(self.plan.liveness_s, self.plan.liveness_s)
        self._patience = self.plan.liveness_failures

    def _asked(self, now: float) -> bool:
        """Whether a router asked for this generation's restart, and it is under way."""
        request = _take(self._requests)
        if request is None or request.generation != self.status.generation:
            return False
        if not request.check:
            self._failed(f"the router asked for a restart: {request.reason}", now)
            return True
        if self._patience != self.plan.check_failures and self._probe is not None:
            self._patience = self.plan.check_failures
            self._probe.hasten(self.plan.check_s)
        return False

    def _ended(self, now: float) -> bool:
        """Whether a rank ended by itself, which is the end of the whole unit."""
        assert self._group is not None
        exited = self._group.exited()
        if exited:
            rank, code = exited[0]
            self._failed(f"rank {rank} {_how(code)}", now, rank)
        return bool(exited)

    def _failed(self, what: str, now: float, rank: int = 0) -> None:
        """The unit ends, and starts again later; one that was never ready does not."""
        self._end_group()
        text = "\n".join([what, *(f"  {line}" for line in self._logs[rank].last_lines())])
        steady = self._ready_at and now - self._ready_at >= self.plan.restart.steady_s
        self._failures = 1 if steady else self._failures + 1
        self._ready_at = 0.0
        policy = self.plan.restart
        if not self._ever_ready:
            self._finish(1, error=text)
            return
        wait_s = min(policy.max_s, policy.first_s * 2 ** min(self._failures - 1, 30))
        self._deadline = now + wait_s
        self._write(
            state=EJECTED,
            phase=f"restarting in {wait_s:.0f} s",
            pids=(),
            restarts=self.status.restarts + 1,
            error=text,
        )

    # --- stopping ---------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Stop the unit: SIGTERM, and SIGKILL when the grace is over. Once is enough."""
        if self.done or self.status.state == DRAINING:
            return
        if self._group is None:
            self._finish(0)
            return
        self._deadline = time.monotonic() + self.plan.grace_s
        self._write(state=DRAINING, phase="stopping")
        self._group.terminate()

    def _tick_draining(self, now: float) -> None:
        group = self._group
        if not group or now >= self._deadline or len(group.exited()) == len(group.ranks):
            self._finish(0)

    def _finish(self, code: int, error: str | None = None) -> None:
        self._end_group()
        self.exit_code, self.done = code, True
        self._write(state=STOPPED, phase=STOPPED, pids=(), error=error)

    def _end_group(self) -> None:
        if self._probe is not None:
            self._probe.close()
        group, self._group = self._group, None
        if group is None:
            return
        group.kill()
        for index, rank in enumerate(group.ranks):
            assert rank.stdout is not None
            with suppress(KeyError):
                self._selector.unregister(rank.stdout)
            with suppress(BlockingIOError):
                while data := os.read(rank.stdout.fileno(), _READ_BYTES):
                    self._logs[index].write(data)
            rank.stdout.close()

    # --- the status file --------------------------------------------------------------------------

    def _write(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        write_status(self._file, self.status, self._started)


def write_status(file: Path, status: UnitStatus, started: float) -> None:
    """Replace a unit's status file; a full disk leaves the old one and the unit running."""
    data = msgspec.json.encode({"format": 1, "status": status, "started": started})
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        temporary.replace(file)


def _take(file: Path) -> RestartRequest | None:
    """Read a request and remove it; what is no request is removed as well."""
    try:
        data = file.read_bytes()
        file.unlink(missing_ok=True)
        return msgspec.json.decode(data, type=RestartRequest)
    except (OSError, msgspec.DecodeError):
        return None


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 512):
            pass


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def main(plan_file: str) -> int:
    """Run the unit of a plan file."""
    plan = msgspec.json.decode(Path(plan_file).read_bytes(), type=SupervisorPlan)
    plan = msgspec.structs.replace(
        plan, status=msgspec.structs.replace(plan.status, supervisor_pid=os.getpid())
    )
    adopt_orphans()
    return Supervisor(plan, started=psutil.Process().create_time()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
