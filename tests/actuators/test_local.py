"""Units start, are seen, change and stop; whatever happens nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infctl import state
from infctl.actuator import DesiredUnit, Diff, UnitStatus
from infctl.actuators import startup
from infctl.actuators.local import Interrupted, LocalActuator
from infctl.errors import MachineError, TargetError

pytestmark = pytest.mark.process

Make = Callable[..., DesiredUnit]


def until(what: Callable[[], bool], seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def gone(pids: list[int]) -> Callable[[], bool]:
    def check() -> bool:
        alive = [p for p in pids if psutil.pid_exists(p)]
        return all(psutil.Process(p).status() == psutil.STATUS_ZOMBIE for p in alive)

    return check


def descendants(pid: int) -> list[int]:
    return [p.pid for p in psutil.Process(pid).children(recursive=True)]


def test_a_unit_from_start_to_stop(desired: Make) -> None:
    actuator, seen = LocalActuator("fleet"), []
    unit = desired()
    diff = actuator.plan((unit,))
    assert diff == Diff(start=(unit,))
    actuator.apply(diff, seen.append)
    (status,) = actuator.observe()
    assert (status.state, status.generation, status.restarts) == ("ready", 1, 0)
    assert [s.phase for s in seen][-1] == "ready"
    assert urllib.request.urlopen(f"{status.url}/health", timeout=2).status == 200
    assert actuator.plan((unit,)).empty
    pids = [status.supervisor_pid, *descendants(status.supervisor_pid)]
    assert set(status.pids) < set(pids)
    actuator.stop_all()
    assert gone(pids)()
    assert actuator.observe() == ()
    assert "Loading weights" in Path(status.logs[0]).read_text()


def test_the_supervisor_is_small(desired: Make) -> None:
    actuator = LocalActuator("fleet")
    actuator.apply(Diff(start=(desired(),)))
    (status,) = actuator.observe()
    assert psutil.Process(status.supervisor_pid).memory_info().rss < 25e6
    actuator.stop_all()


def test_phases_come_from_the_engine(desired: Make) -> None:
    actuator = LocalActuator("fleet", pause=lambda s: bool(phases) or bool(time.sleep(s)))
    phases: list[str] = []

    def progress(status: UnitStatus) -> None:
        if status.phase == "loading weights":
            phases.append(status.phase)

    with pytest.raises(Interrupted):
        actuator.apply(Diff(start=(desired(never_ready=True),)), progress)
    assert phases == ["loading weights"]
    assert actuator.observe() == ()


def test_plan_compares_names_and_revisions(desired: Make) -> None:
    actuator = LocalActuator("fleet")
    kept, changed, dropped = desired("a-0"), desired("a-1"), desired("a-2")
    actuator.apply(Diff(start=(kept, changed, dropped)))
    other = desired("a-1", die_after=100)
    new = desired("a-3")
    diff = actuator.plan((kept, other, new))
    assert diff == Diff(start=(new,), stop=("a-2",), restart=(other,))
    before = {u.name: u.supervisor_pid for u in actuator.observe()}
    actuator.apply(diff)
    after = {u.name: u for u in actuator.observe()}
    assert set(after) == {"a-0", "a-1", "a-3"}
    assert after["a-0"].supervisor_pid == before["a-0"]
    assert after["a-1"].supervisor_pid != before["a-1"]
    assert after["a-1"].generation == 2
    assert actuator.plan((kept, other, new)).empty
    actuator.stop_all()


def test_an_engine_that_dies_at_start_fails_all(desired: Make) -> None:
    actuator = LocalActuator("fleet")
    units = (desired("a-0"), desired("a-1", die_before_ready=True))
    with pytest.raises(TargetError) as error:
        actuator.apply(Diff(start=units))
    text = str(error.value)
    assert "unit a-1 did not start: rank 0 exited with code 1 while loading weights" in text
    assert "CUDA error: out of memory (not really)" in text
    assert str(state.unit_path("fleet", "a-1") / "rank-0.log") in text
    assert actuator.observe() == ()


def test_a_missing_python_is_named(desired: Make) -> None:
    with pytest.raises(MachineError) as error:
        LocalActuator("fleet").apply(Diff(start=(desired(python="/no/such/python"),)))
    assert "/no/such/python is not there" in str(error.value)
    assert "INFCTL_FAKE_PYTHON" in str(error.value)


def test_a_port_that_was_taken_meanwhile_is_changed(
    desired: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = startup.free_ports, []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        def first_a_taken_one(count: int, host: str) -> list[int]:
            calls.append(count)
            port = taken.getsockname()[1]
            return [port, port] if len(calls) == 1 else real(count, host)

        monkeypatch.setattr(startup, "free_ports", first_a_taken_one)
        actuator = LocalActuator("fleet")
        actuator.apply(Diff(start=(desired(),)))
        (status,) = actuator.observe()
        assert status.state == "ready"
        assert not status.url.endswith(f":{taken.getsockname()[1]}")
        actuator.stop_all()
    assert len(calls) == 2


def test_a_unit_that_dies_is_restarted(desired: Make) -> None:
    actuator = LocalActuator("fleet")
    actuator.apply(Diff(start=(desired(),)))
    (before,) = actuator.observe()
    os.kill(before.pids[0], signal.SIGKILL)
    until(lambda: actuator.statuses()[0].restarts == 1)
    assert "rank 0 was killed by SIGKILL" in (actuator.statuses()[0].error or "")
    until(lambda: actuator.statuses()[0].state == "ready")
    (after,) = actuator.observe()
    assert (after.generation, after.url, after.error) == (2, before.url, None)
    assert after.pids != before.pids
    actuator.stop_all()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_children_of_the_engine_go_too(desired: Make) -> None:
    actuator = LocalActuator("fleet")
    actuator.apply(Diff(start=(desired(child=True, escaped_child=True),)))
    (status,) = actuator.observe()
    pids = descendants(status.supervisor_pid)
    assert len(pids) == 4  # guard, server, its child and the one that left the group
    actuator.stop_all()
    assert gone(pids)()


def test_a_killed_supervisor_takes_its_unit_along(desired: Make) -> None:
    actuator = LocalActuator("fleet")
    actuator.apply(Diff(start=(desired(child=True, ignore_term=True),)))
    (status,) = actuator.observe()
    pids = descendants(status.supervisor_pid)
    os.kill(status.supervisor_pid, signal.SIGKILL)
    until(gone(pids))
    until(lambda: actuator.observe() == ())
    actuator.stop_all()


def test_a_unit_left_by_another_command_is_ended_first(desired: Make) -> None:
    first = LocalActuator("fleet", attached=False)
    first.apply(Diff(start=(desired(),)))
    (left,) = first.observe()
    second = LocalActuator("fleet")
    second.apply(Diff(start=(desired(),), stop=(left.name,)))
    (status,) = second.observe()
    assert status.supervisor_pid != left.supervisor_pid
    assert status.generation == 2
    first._launches.clear()
    second.stop_all()
