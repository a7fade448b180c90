"""The supervisor's own decisions: backoff, giving up, grace, the end of its input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from infctl import state
from infctl.actuator import RESTART_FILE, DesiredUnit, RestartRequest, UnitStatus
from infctl.actuators.plan import RestartPolicy
from infctl.actuators.startup import plan_of

pytestmark = pytest.mark.process

Start = Callable[..., "subprocess.Popen[bytes]"]
QUICK = RestartPolicy(first_s=0.05, max_s=0.1, steady_s=60)


@pytest.fixture
def start(desired: Callable[..., DesiredUnit]) -> Start:
    def run(changes: dict[str, Any], **args: Any) -> subprocess.Popen[bytes]:
        plan = plan_of("fleet", desired(**args), attached=True, start_s=20)
        plan = msgspec.structs.replace(plan, poll_s=0.02, **changes)
        file = Path(plan.folder) / "plan.json"
        file.write_bytes(msgspec.json.encode(plan))
        return subprocess.Popen(
            [sys.executable, "-m", "infctl.actuators.supervisor", str(file)], stdin=subprocess.PIPE
        )

    return run


def status() -> UnitStatus | None:
    found = state.load_unit("fleet", "a-0")
    return found.status if found else None


def until(wanted: str, seconds: float = 8.0) -> UnitStatus:
    deadline = time.monotonic() + seconds
    while True:
        found = status()
        if found and found.state == wanted:
            return found
        assert time.monotonic() < deadline, f"not {wanted} in time: {found}"
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin
    process.stdin.close()
    return process.wait(15)


def test_the_end_of_its_input_stops_the_unit(start: Start) -> None:
    process = start({})
    until("ready")
    assert end(process) == 0
    found = status()
    assert found
    assert (found.state, found.pids) == ("stopped", ())


def test_sigterm_stops_the_unit(start: Start) -> None:
    process = start({})
    until("ready")
    process.terminate()
    assert process.wait(10) == 0
    assert process.stdin
    process.stdin.close()


def test_sigkill_follows_when_the_grace_is_over(start: Start) -> None:
    process = start({"grace_s": 0.3}, ignore_term=True)
    until("ready")
    before = time.monotonic()
    assert end(process) == 0
    assert 0.25 < time.monotonic() - before < 5


def test_a_unit_that_was_ready_once_is_never_given_up(start: Start) -> None:
    process = start({"restart": QUICK}, die_after=0.05)
    deadline = time.monotonic() + 20
    while (found := status()) is None or found.restarts < 8:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    assert "rank 0 exited with code 7" in (found.error or "")
    assert end(process) == 0


def test_a_unit_that_was_steady_starts_to_count_anew(start: Start) -> None:
    policy = RestartPolicy(first_s=0.02, max_s=0.02, steady_s=0.05)
    process = start({"restart": policy}, die_after=0.3)
    deadline = time.monotonic() + 15
    while (found := status()) is None or found.restarts < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    assert end(process) == 0


def test_a_unit_that_is_never_ready_is_given_up(start: Start) -> None:
    process = start({"start_s": 0.5}, never_ready=True)
    assert process.wait(10) == 1
    found = status()
    assert found
    assert "is not ready after 0 s" in (found.error or "")
    assert process.stdin
    process.stdin.close()


def ask(**fields: Any) -> None:
    state.ask_for_restart("fleet", "a-0", RestartRequest(**fields))


def until_generation(number: int, seconds: float = 8.0) -> UnitStatus:
    deadline = time.monotonic() + seconds
    while (found := status()) is None or found.generation < number or found.state != "ready":
        assert time.monotonic() < deadline, f"no generation {number} in time: {found}"
        time.sleep(0.01)
    return found


LIVELY = {"liveness_s": 0.2, "liveness_failures": 3, "check_s": 0.1, "restart": QUICK}


def test_an_engine_that_hangs_is_killed_and_started_again(start: Start) -> None:
    process = start(LIVELY)
    first = until("ready")
    os.kill(first.pids[0], signal.SIGSTOP)
    again = until_generation(2)
    assert again.restarts == 1
    assert again.pids != first.pids
    assert end(process) == 0


def test_one_that_answers_is_left_alone_when_a_check_is_asked_for(start: Start) -> None:
    process = start(LIVELY)
    until("ready")
    ask(generation=1, reason="looks mute", check=True)
    time.sleep(0.8)
    found = status()
    assert found
    assert (found.state, found.generation) == ("ready", 1)
    assert not (state.unit_path("fleet", "a-0") / RESTART_FILE).exists()
    assert end(process) == 0


def test_a_check_finds_out_sooner_that_an_engine_hangs(start: Start) -> None:
    process = start(LIVELY | {"liveness_s": 60.0})
    first = until("ready")
    os.kill(first.pids[0], signal.SIGSTOP)
    ask(generation=1, reason="mute", check=True)
    found = until_generation(2)
    assert found.pids != first.pids
    assert end(process) == 0


def test_a_router_may_have_a_generation_restarted_and_no_other(start: Start) -> None:
    process = start(LIVELY)
    first = until("ready")
    file = state.unit_path("fleet", "a-0") / RESTART_FILE
    for wrong in (b"{", msgspec.json.encode(RestartRequest(7, "another generation"))):
        state.write(file, wrong)
        until_gone(file)
    found = status()
    assert found
    assert (found.generation, found.pids) == (1, first.pids)
    ask(generation=1, reason="garbage")
    again = until_generation(2)
    assert again.error is None
    assert end(process) == 0


def until_gone(file: Path) -> None:
    deadline = time.monotonic() + 5
    while file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stop_is_for_the_leader_and_its_children_end_with_the_group(start: Start) -> None:
    process = start({"grace_s": 5.0}, child=True)
    found = until("ready")
    children = psutil.Process(found.pids[0]).children()
    before = time.monotonic()
    assert end(process) == 0
    assert time.monotonic() - before < 3
    assert len(children) == 1
    assert not children[0].is_running()


def test_logs_are_bounded(start: Start) -> None:
    noisy = "import sys\nwhile True: print('x' * 999)"
    process = start({"log_bytes_max": 50_000, "start_s": 1.0})
    assert end(process) == 0
    plan_file = state.unit_path("fleet", "a-0") / "plan.json"
    plan = msgspec.json.decode(plan_file.read_bytes())
    plan["ranks"] = [{"argv": [sys.executable, "-c", noisy], "env": {}}]
    plan_file.write_bytes(msgspec.json.encode(plan))
    process = subprocess.Popen(
        [sys.executable, "-m", "infctl.actuators.supervisor", str(plan_file)], stdin=subprocess.PIPE
    )
    assert process.wait(15) == 1
    assert process.stdin
    process.stdin.close()
    logs = sorted(state.unit_path("fleet", "a-0").glob("rank-0.log*"))
    assert [log.name for log in logs] == ["rank-0.log", "rank-0.log.1"]
    assert all(log.stat().st_size < 50_000 + 70_000 for log in logs)
    found = status()
    assert found
    assert len(found.error or "") < 20_000
