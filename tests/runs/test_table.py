import io

import msgspec
from rich.console import Console

from infctl.runs.result import Result
from infctl.runs.table import comparison


def text(result: Result) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison(result))
    return console.export_text()


def test_two_policies_fit_80_columns(make) -> None:
    result = make.result()
    names = [
        msgspec.structs.replace(r, policy=p)
        for r, p in zip(result.runs, ("round-robin", "predicted-ttft"), strict=True)
    ]
    shown = text(msgspec.structs.replace(result, runs=names))
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "predicted-ttft" in shown
    assert "change" in shown
    for label in ("TTFT p50", "TPOT p90", "E2E p99", "Output", "Goodput", "Prefix hit", "Errors"):
        assert label in shown
    assert "self-check passed" in shown


def test_one_run_has_nothing_to_compare_with(make) -> None:
    result = make.result()
    assert "change" not in text(msgspec.structs.replace(result, runs=result.runs[:1]))


def test_a_failed_self_check_is_said(make) -> None:
    failed = msgspec.structs.replace(make.result().client, passed=False, reasons=["b: late sends"])
    assert "Client self-check FAILED: b: late sends" in text(
        msgspec.structs.replace(make.result(), client=failed)
    )
