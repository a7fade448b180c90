"""`infctl sim` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infctl.cli.sim import app
from infctl.errors import InputError, MachineError

FAST = ["demo", "--workload", "code", "--limit", "60"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_the_profiles_policy_runs_alone(tmp_path: Path) -> None:
    done = invoke(*FAST, "--out", str(tmp_path))
    assert done.exit_code == 0
    assert "predicted-ttft" in done.output
    assert "round-robin" not in done.output
    assert "Simulated: no network, no client." in done.output
    (run,) = result(tmp_path)["runs"]
    assert (run["requests"], run["errors"], run["simulated"]) == (60, 0, True)
    page = (tmp_path / "report.html").read_text()
    assert "infctl sim" in page
    assert "Is the client to be trusted?" not in page


def test_policies_are_compared_with_the_first(tmp_path: Path) -> None:
    policies = ["--policy", "round-robin", "--policy", "least-request"]
    done = invoke(*FAST, *policies, "--units", "3", "--out", str(tmp_path), "--json")
    found = json.loads(done.stdout)
    assert [run["policy"] for run in found["runs"]] == ["round-robin", "least-request"]
    assert len(found["runs"][0]["per_endpoint"]) == 3
    assert found == result(tmp_path)


def test_rates_get_a_folder_each(tmp_path: Path) -> None:
    rates = ["--rate-scale", "0.5", "--rate-scale", "2"]
    assert invoke(*FAST, *rates, "--out", str(tmp_path)).exit_code == 0
    assert result(tmp_path / "rate-0.5")["rate_scale"] == 0.5
    assert result(tmp_path / "rate-2")["rate_scale"] == 2.0


def test_failed_requests_are_a_no(tmp_path: Path) -> None:
    small = ["--set", "engine.args.kv_capacity_tokens=2048"]
    assert invoke(*FAST, *small, "--out", str(tmp_path)).exit_code == 1


def test_an_unknown_policy_is_told_with_what_is_meant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="least-request") as raised:
        invoke(*FAST, "--policy", "least-requests", "--out", str(tmp_path))
    assert "did you mean" in str(raised.value).lower()


def test_a_folder_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="--out"):
        invoke(*FAST, "--out", str(tmp_path / "file"))


def test_parameters_go_to_the_workload(tmp_path: Path) -> None:
    done = invoke(*FAST, "--parameter", "rate_rps=50", "--out", str(tmp_path), "--json")
    assert json.loads(done.stdout)["runs"][0]["duration_s"] < 30
