import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from infctl.bench.runner import Progress, RunSpec, pick_speed, run
from infctl.errors import InputError, TargetError, UsageError

pytestmark = pytest.mark.process


def test_speed_fits_about_80_seconds() -> None:
    assert [pick_speed(s) for s in (10, 80, 294, 1000, 3540)] == [1.0, 1.0, 3.7, 12.0, 12.0]


def test_a_run_in_a_child_process(server) -> None:
    seen: list[Progress] = []
    spec = RunSpec(url=server.url, limit=60, rate_scale=200.0, policy="p", workload="code")
    found = run(spec, seen.append)
    assert (found.policy, found.requests, found.errors, found.model) == ("p", 60, 0, "tiny")
    assert found.prefix_hit_rate == pytest.approx(0.25, abs=0.01)
    assert {e.endpoint for e in found.per_endpoint} == {"e0", "e1"}
    assert found.client.wall_s > 0
    assert seen[-1].done == 60
    assert _children() == []


def test_a_spec_out_of_bounds_starts_nothing() -> None:
    with pytest.raises(UsageError, match="limit"):
        run(RunSpec(url="http://127.0.0.1:1", limit=10**9))


def test_errors_come_back_as_they_were() -> None:
    with pytest.raises(InputError, match="no workload named") as caught:
        run(RunSpec(url="http://127.0.0.1:1", workload="none", model="m", bytes_per_token=4.0))
    assert caught.value.hint
    with pytest.raises(TargetError, match="cannot connect"):
        run(RunSpec(url="http://127.0.0.1:1"))
    assert _children() == []


def test_an_interrupt_ends_the_child(server) -> None:
    server.first_s = 30.0

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(RunSpec(url=server.url, limit=5, workload="code"), interrupt)
    assert _children() == []


def test_the_client_dies_with_its_parent(server, tmp_path: Path) -> None:
    server.first_s = 60.0
    script = (
        "from infctl.bench.runner import RunSpec, run\n"
        f"spec = RunSpec(url={server.url!r}, limit=5, workload='code')\n"
        "run(spec, lambda p: print(p, flush=True))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    clients = psutil.Process(parent.pid).children()
    assert len(clients) == 1
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs(clients, timeout=5)
    assert (len(gone), alive) == (1, [])


def _children() -> list[psutil.Process]:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        found = [c for c in psutil.Process().children() if "infctl.bench.client" in c.cmdline()]
        if not found:
            return []
        time.sleep(0.05)
    return found
