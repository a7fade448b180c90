"""`infctl up` with a real vLLM: its ends that nobody plans, and its measuring."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest

only_vllm = pytest.mark.parametrize("infctl", ["vllm"], indirect=True)


@only_vllm
def test_kill_9_leaves_nothing_running(infctl: Any, up: Any) -> None:
    """Of its own, vLLM's core outlives a server that is killed."""
    fleet = up(infctl)
    fleet.wait_ready()
    assert any("EngineCore" in name_of(process) for process in fleet.processes)
    fleet.kill()
    fleet.until_nothing_runs(20)


def name_of(process: psutil.Process) -> str:
    return " ".join([process.name(), *process.cmdline()])


@only_vllm
def test_bench(infctl: Any) -> None:
    out = infctl.run(
        *("up", "tiny-vllm", "--port", "0", "--bench", "--limit", "20", "--out", "out"),
        timeout_s=150,
    )
    result = json.loads((infctl.folder / "out/result.json").read_text())
    assert [run["policy"] for run in result["runs"]] == ["round-robin", "predicted-ttft"]
    for run in result["runs"]:
        assert run["requests"] >= 5
        assert run["errors"] == 0
        assert run["prefix_hit_rate"] > 0.1
        assert 0 < run["ttft_ms"]["p50"] < 5000
    assert "requests exceed the model's context of 2,048 tokens and were not sent" in out
    assert (infctl.folder / "out/report.html").stat().st_size > 1000
