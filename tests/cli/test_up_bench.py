"""`infctl up --bench` on emulated engines: both runs, the files, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.process

SMALL = ("up", "demo", "--set", "pools.chat.units.ready=2", "--port", "0", "--bench")


def test_two_policies_are_measured_on_the_same_requests(shell: Any) -> None:
    (shell.folder / "infctl").mkdir()  # as beside a clone: what lies there must not be run
    (shell.folder / "infctl/__init__.py").write_text("raise SystemExit('the wrong infctl')")
    done = shell.run(*SMALL, "--limit", "12", "--speed", "12", "--out", "out", timeout_s=60)
    assert done.returncode == 0, done.stderr
    result = json.loads((shell.folder / "out/result.json").read_text())
    assert [run["policy"] for run in result["runs"]] == ["round-robin", "predicted-ttft"]
    for run in result["runs"]:
        assert {e["endpoint"] for e in run["per_endpoint"]} == {"chat-0", "chat-1"}
        assert (run["requests"], run["errors"]) == (12, 0)
    assert len({run["input_tokens"] for run in result["runs"]}) == 1
    assert (result["speed"], result["rate_scale"], result["seed"]) == (12, 1, 0)
    assert "<html" in (shell.folder / "out/report.html").read_text()
    assert "TTFT p50" in done.stdout
    assert "predicted-ttft: " in done.stdout
    assert "Wrote out/report.html and out/result.json" in done.stdout
    assert "within the SLO, target 99.0 %" in done.stdout
    assert shell.running() == []


def test_the_speed_is_chosen_and_said_and_a_signal_ends_it(shell: Any) -> None:
    process = shell.start(*SMALL, "--limit", "600", "--out", "out")
    assert process.stdout
    first = process.stdout.readline()
    assert "× speed (chosen to fit; --speed sets it), about " in first
    assert next(line for line in process.stdout if "round-robin: sending" in line)
    process.terminate()
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "interrupted: nothing was written to out\n")
    assert not (shell.folder / "out").exists()
    assert shell.running() == []


def test_a_bad_workload_starts_nothing(shell: Any) -> None:
    (shell.folder / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 5}\nnonsense\n')
    done = shell.run(*SMALL, "--workload", "trace.jsonl")
    assert done.returncode == 3
    assert "trace.jsonl" in done.stderr
    assert "starting" not in done.stdout
    assert shell.run(*SMALL, "--workload", "conversatio").returncode == 3
    assert shell.run(*SMALL, "--policy", "nonsense").returncode == 3


def test_json_is_the_result_alone(shell: Any) -> None:
    done = shell.run(*SMALL, "--limit", "2", "--speed", "12", "--json", timeout_s=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((shell.folder / "infctl-out/result.json").read_text())
    # Fewer requests than endpoints: those that served none are there, with zeros.
    assert [len(run["per_endpoint"]) for run in result["runs"]] == [2, 2]
    assert "predicted-ttft: sending" in done.stderr


def test_a_policy_is_not_compared_with_itself(shell: Any) -> None:
    done = shell.run(*SMALL, "--policy", "round-robin")
    assert (done.returncode, done.stdout) == (2, "")
    assert "round-robin itself" in done.stderr
