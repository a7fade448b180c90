"""`infctl up` with engines that are quick to start, and every way it can end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from typing import Any

import msgspec
import pytest
import typer

from infctl import cli
from infctl.cli.up import duration_s
from infctl.cli.up_checks import installed_version

pytestmark = pytest.mark.process


def wait_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    for line in process.stdout:
        if " is ready: " in line:
            return line.split(" is ready: ")[1].strip()
    raise AssertionError(process.communicate()[1])


def test_for_ends_by_itself_and_json_is_the_state(shell: Any) -> None:
    done = shell.run("up", shell.profile(), "--for", "300ms", "--port", "0", "--json")
    assert done.returncode == 0, done.stderr
    *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [u["state"] for u in last["units"]] == ["ready", "ready"]
    assert "ready" in [e["state"] for e in last["figures"]["endpoints"]]
    assert last["figures"]["policy"] == "least-request"
    assert shell.running() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_in_order(shell: Any, number: signal.Signals) -> None:
    process = shell.start("up", shell.profile(), "--port", "0")
    url = wait_ready(process)
    assert json.load(urllib.request.urlopen(f"{url}/models", timeout=5))["data"]
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
    assert shell.running() == []


def test_a_second_one_is_told_what_runs_and_kill_9_leaves_nothing(shell: Any) -> None:
    process = shell.start("up", shell.profile(), "--port", "0")
    url = wait_ready(process)
    second = shell.run("up", "fake.yaml", "--port", "0")
    assert second.returncode == 4
    assert f"the fleet fake runs already on {url.removesuffix('/v1')} (pid " in second.stderr
    assert str(process.pid) in second.stderr
    assert len(shell.running()) >= 1 + 1 + 2 * 3  # itself, router; supervisor, guard, engine
    process.kill()
    process.wait()
    shell.until_nothing_runs(10)
    third = shell.run("up", "fake.yaml", "--port", "0", "--for", "1ms")
    assert third.returncode == 0, third.stderr


def test_it_may_start_again_while_a_killed_one_still_ends(shell: Any) -> None:
    profile = shell.profile()
    process = shell.start("up", profile, "--port", "0")
    wait_ready(process)
    process.kill()
    process.wait()
    again = shell.start("up", profile, "--port", "0", "--for", "1ms")
    assert wait_ready(again)
    assert again.wait(20) == 0
    assert shell.running() == []


def test_interrupted_before_it_is_up(shell: Any) -> None:
    profile = shell.profile()
    process = shell.start("up", profile, "--port", "0", "--set", "engine.args.never_ready=true")
    assert process.stdout
    assert next(line for line in process.stdout if "loading weights" in line)
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "")
    assert shell.running() == []


def test_an_engine_that_dies_while_starting(shell: Any) -> None:
    profile = shell.profile()
    done = shell.run("up", profile, "--port", "0", "--set", "engine.args.die_before_ready=true")
    assert done.returncode == 5
    assert "did not start: rank 0 exited with code 1 while loading weights" in done.stderr
    assert "CUDA error: out of memory (not really)" in done.stderr
    assert "rank-0.log" in done.stderr
    assert "Traceback" not in done.stderr
    assert shell.running() == []


def test_a_missing_python(shell: Any) -> None:
    done = shell.run("up", shell.profile(), "--port", "0", "--set", "engine.python=/no/python")
    assert done.returncode == 4
    assert "/no/python is not there" in done.stderr
    assert "INFCTL_FAKE_PYTHON" in done.stderr
    assert shell.running() == []


def test_a_taken_port_is_told_before_anything_starts(shell: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = shell.run("up", shell.profile(), "--port", port)
    assert done.returncode == 4
    assert f"127.0.0.1:{port}: port {port} cannot be used" in done.stderr
    assert "--port" in done.stderr
    assert "starting" not in done.stdout


def test_a_router_that_dies_ends_it(shell: Any) -> None:
    process = shell.start("up", shell.profile(), "--port", "0")
    wait_ready(process)
    (router,) = [p for p in shell.running() if "router" in p.cmdline()[4:5]]
    os.kill(router.pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 5
    assert "the router ended" in stderr
    assert shell.running() == []


def test_supervisors_that_die_end_it(shell: Any) -> None:
    process = shell.start("up", shell.profile(), "--port", "0")
    wait_ready(process)
    for supervisor in [p for p in shell.running() if p.ppid() == process.pid]:
        if "infctl.actuators.supervisor" in supervisor.cmdline():
            os.kill(supervisor.pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 5
    assert "every unit was given up; a-0: its supervisor ended" in stderr
    assert shell.running() == []


def test_more_units_than_a_machine_can_run_are_refused(shell: Any) -> None:
    arguments = ("--port", "0", "--set", "pools.a.units.ready=10000")
    done = shell.run("up", shell.profile(), *arguments, timeout_s=10)
    assert (done.returncode, "too many for one" in done.stderr) == (4, True)


def test_a_state_folder_that_is_removed_meanwhile(shell: Any) -> None:
    process = shell.start("up", shell.profile(), "--port", "0")
    wait_ready(process)
    shutil.rmtree(shell.state / "infctl" / "fake")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.5)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
    assert shell.running() == []


def test_real_engines_have_one_speed(shell: Any) -> None:
    done = shell.run("up", shell.profile(), "--port", "0", "--speed", "2")
    assert done.returncode == 2
    assert "real engines run at their own speed" in done.stderr


def test_a_missing_model_path(shell: Any) -> None:
    done = shell.run("up", shell.profile(), "--port", "0", "--set", "models.fake.path=/no/model")
    assert done.returncode == 4
    assert "python -m infctl.testing.tiny_model /no/model" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--bench", "--for", "3s"], 2, "--for has no meaning with --bench"),
        (["--limit", "3"], 2, "--limit has no effect without --bench"),
        (["--workload", "code", "--out", "x"], 2, "--workload and --out have no effect"),
        (["--set", "pools.chat.units.ready=0"], 3, "no units: pools.chat.units.ready is 0"),
        (["--bench", "--set", "pools.chat.units.ready=0"], 3, "no units"),
    ],
)
def test_what_could_only_do_nothing_is_refused(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["up", *arguments]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_missing_engine_is_told_before_anything_is(shell: Any) -> None:
    if installed_version("vllm", sys.executable) != "absent":
        pytest.skip("this Python has vllm")
    shell.env.pop("INFCTL_VLLM_PYTHON", None)
    done = shell.run("up", "qwen3-8b", "--port", "0")
    assert (done.returncode, done.stdout) == (4, "")
    assert "has no package vllm" in done.stderr
    assert "INFCTL_VLLM_PYTHON" in done.stderr
    assert "--emulate" in done.stderr


def test_versions_of_packages() -> None:
    assert installed_version("no-such-package", sys.executable) == "absent"
    assert installed_version("msgspec", sys.executable) == msgspec.__version__
    assert installed_version("msgspec", "/no/python") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("1.5m", 90), ("1h", 3600), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1 s 2"])
def test_no_durations(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration_s(text)
