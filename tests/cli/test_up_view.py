"""What `up` shows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from infctl.actuator import UnitStatus
from infctl.cli.up_view import JsonView, LineView, Snapshot, fleet_table, view

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
    console = Console(width=100, color_system=None, record=True)
    with console.capture() as capture:
        console.print(fleet_table(snapshot))
    return capture.get()


def test_table() -> None:
    text = drawn(Snapshot("demo", "http://x", (unit(),), FIGURES))
    header, first, *_ = text.splitlines()
    assert header.split()[:4] == ["endpoint", "state", "running", "waiting"]
    assert first.split() == [
        "a-0",
        "ready",
        "3",
        "0",
        "42%",
        "–",
        "1,234",
        "ms/6,789",
        "ms",
        "1,520",
    ]
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
    shown.ready("demo", "http://x")
    for _ in range(3):
        shown.show(Snapshot("demo", "http://x", (unit(),), FIGURES))
    shown.close()
    assert capsys.readouterr().out.splitlines() == [
        "a-0: loading weights",
        "demo is ready: http://x/v1",
        "demo: 2/2 ready, running 3, waiting 0, KV 42%, hit rate –, "
        "TTFT p50/p99 1,234 ms/6,789 ms, 1,520 tok/s",
    ]


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown = view(as_json=True)
    assert isinstance(shown, JsonView)
    shown.unit(unit())
    shown.ready("demo", "http://x")
    for _ in range(2):
        shown.show(Snapshot("demo", "http://x", (unit(),), FIGURES))
    shown.close()
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == second
    assert first["figures"]["policy"] == "predicted-ttft"
    assert first["units"][0]["name"] == "a-0"
