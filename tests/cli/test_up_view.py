"""What `up` shows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from infctl.actuator import UnitStatus
from infctl.cli.up_view import JsonView, LineView, Snapshot, fleet_table, start_table, view

ROW: dict[str, Any] = {
    "id": "a-0",
    "state": "ready",
    "running": 3,
    "waiting": 0,
    "kv_usage": 0.42,
    "hit_rate": None,
    "ttft_ms": {"p50": 1234.5, "p99": 6789.0},
    "tokens_per_s": 1520.4,
}
FIGURES = {"policy": "predicted-ttft", "endpoints": [ROW, ROW | {"id": "a-1"}], "totals": ROW}


def unit(**changes: Any) -> UnitStatus:
    status = UnitStatus(
        name="a-0",
        pool="a",
        cluster="local",
        role="unified",
        engine="emulated",
        models=("m",),
        revision="r",
        generation=1,
        state="ready",
        phase="ready",
        url="http://127.0.0.1:1",
    )
    return msgspec.structs.replace(status, **changes)


def drawn(snapshot: Snapshot) -> str:
    console = Console(width=80, color_system=None, record=True)
    with console.capture() as capture:
        console.print(fleet_table(snapshot))
    return capture.get()


def test_table() -> None:
    text = drawn(Snapshot("demo", "http://x", (unit(),), FIGURES))
    header, first, *_ = text.splitlines()
    assert header.split()[:4] == ["endpoint", "state", "run", "wait"]
    assert first.split() == ["a-0", "ready", "3", "0", "42", "–", "1.2s/6.8s", "1,520"]
    assert "predicted-ttft" in text


def test_table_tells_of_troubles_and_of_a_silent_router() -> None:
    broken = unit(error="rank 0 exited with code 7\n  more", phase="restarting in 2 s", restarts=3)
    text = drawn(Snapshot("demo", "http://x", (broken,), None))
    assert "the router does not answer" in text
    assert "a-0: rank 0 exited with code 7; restarting in 2 s, 3 restarts" in text
    assert "more" not in text


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LineView()
    shown.unit(unit(phase="loading weights"))
    shown.ready("demo", "http://x", "Ctrl-C stops it.")
    for _ in range(3):
        shown.show(Snapshot("demo", "http://x", (unit(),), FIGURES))
    shown.stopping()
    shown.close()
    shown.stopped()
    assert capsys.readouterr().out.splitlines() == [
        "a-0: loading weights",
        "demo is ready: http://x/v1",
        "demo: Ctrl-C stops it.",
        "demo: 2/2 ready, running 3, waiting 0, KV 42 %, hit rate – %, "
        "TTFT p50/p99 1.2s/6.8s, 1,520 tok/s",
        "stopping",
        "stopped",
    ]


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown = view(as_json=True)
    assert isinstance(shown, JsonView)
    shown.unit(unit())
    shown.ready("demo", "http://x", "Ctrl-C stops it.")
    for _ in range(2):
        shown.show(Snapshot("demo", "http://x", (unit(),), FIGURES))
    shown.close()
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == second
    assert first["figures"]["policy"] == "predicted-ttft"
    assert first["units"][0]["name"] == "a-0"


LARGE = ROW | {
    "id": "a-very-long-name-of-a-pool-17",
    "state": "verifying",
    "running": 12_345,
    "waiting": 12_345,
    "kv_usage": 1.0,
    "hit_rate": 1.0,
    "ttft_ms": {"p50": 99_900.0, "p99": 1_234_567.0},
    "tokens_per_s": 1_234_567.0,
}


def test_large_numbers_are_whole_in_80_columns() -> None:
    text = drawn(Snapshot("demo", "http://x", (), {**FIGURES, "endpoints": [LARGE]}))
    header, first, *_ = text.splitlines()
    assert header.split() == ["endpoint", "state", "run", "wait", "KV", "%", "hit", "%", "TTFT",
                              "p50/p99", "tok/s"]  # fmt: skip
    figures = ["verifying", "12,345", "12,345", "100", "100", "99.9s/1235s", "1,234,567"]
    assert first.split()[1:] == figures
    assert max(map(len, text.splitlines())) <= 80


def test_more_endpoints_than_rows_keep_the_totals() -> None:
    rows = [ROW | {"id": f"a-{i}"} for i in range(40)]
    rows[33]["state"] = "ejected"
    broken = unit(name="a-33", error="rank 0 exited", phase="restarting in 2 s", restarts=3)
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        shown = Snapshot("demo", "http://x", (broken,), {**FIGURES, "endpoints": rows})
        console.print(fleet_table(shown, 20))
    lines = capture.get().splitlines()
    assert len(lines) < 20
    assert lines[1].startswith("a-33")
    assert any(line.startswith("… and 27 more") for line in lines)
    assert any(line.startswith("fleet") and "39/40" in line for line in lines)


def test_units_that_still_start_come_first() -> None:
    units = [unit(name=f"a-{i}", state="starting" if i == 30 else "ready") for i in range(31)]
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(start_table(units, 3.0, 24))
    lines = capture.get().splitlines()
    assert len(lines) < 24
    assert lines[0].startswith("30 of 31 ready")
    assert lines[2].startswith("a-30")
    assert "… and 12 more" in lines[-1]
