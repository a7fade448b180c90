"""`infctl sim compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infctl.cli.sim import app
from infctl.errors import InputError
from infctl.sim import arena


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["compare", *arguments], catch_exceptions=False)


def test_a_comparison_leaves_a_table_and_its_figures(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(arena, "_SCAN_STEP", 0.5)
    monkeypatch.setattr(arena, "_RESOLUTION", 0.2)
    done = invoke(
        *("demo", "--units", "2", "--workload", "code", "--limit", "200"),
        *("--policy", "least-request", "--jobs", "1", "--out", str(tmp_path)),
    )
    assert done.exit_code == 0
    assert "round-robin's and" in done.output
    assert (tmp_path / "compare.md").read_text().startswith("## code")
    assert done.output.startswith("## code")
    (found,) = json.loads((tmp_path / "compare.json").read_text())
    assert found["schema_version"] == 1
    assert [s["policy"] for s in found["standings"]][1:] == ["round-robin", "least-request"]


def test_an_unknown_policy_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dynamo-cost"):
        invoke("demo", "--policy", "dynamo-costs", "--limit", "100", "--out", str(tmp_path))
