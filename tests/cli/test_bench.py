import json
from pathlib import Path

import pytest
from fakes import samples, streaming
from typer.testing import CliRunner

from infctl.cli.bench import app
from infctl.errors import InputError, MachineError, UsageError

server = streaming.server
make = samples.make
FAST = ["--workload", "code", "--limit", "20", "--rate-scale", "50"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_run_writes_a_result_a_report_and_a_table(server, tmp_path: Path) -> None:
    done = invoke(server.url, *FAST, "--out", str(tmp_path), "--slo-ttft-ms", "500")
    assert done.exit_code == 0
    assert "TTFT p50" in done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["runs"][0]["requests"] == 20
    assert result["slo"]["ttft_ms"] == 500
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_json_is_the_result_alone(server, tmp_path: Path) -> None:
    done = invoke("run", server.url, *FAST, "--out", str(tmp_path), "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "result.json").read_text())


def test_workload_parameters_and_the_key(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFCTL_API_KEY", "secret")
    done = invoke(
        server.url, *FAST, "--out", str(tmp_path), "--set", "shared-tokens=64", "--concurrency", "2"
    )
    assert done.exit_code == 0
    prompts = [b["prompt"] for b in server.bodies if b.get("stream")]
    assert len({p[:256] for p in prompts}) == 1
    assert "secret" not in (tmp_path / "result.json").read_text()


def test_failed_requests_make_it_exit_with_1(server, tmp_path: Path) -> None:
    server.mode = "cut"
    done = invoke(server.url, *FAST, "--out", str(tmp_path))
    assert done.exit_code == 1
    assert json.loads((tmp_path / "result.json").read_text())["runs"][0]["errors"] == 20


def test_a_folder_that_cannot_be_is_told_before_anything_is_sent(server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written there"):
        invoke(server.url, *FAST, "--out", str(tmp_path / "file" / "out"))
    assert server.bodies == []


def test_report_renders_again(make, tmp_path: Path) -> None:
    from infctl.runs.result import write

    write(make.result(), tmp_path / "result.json")
    done = invoke("report", str(tmp_path), "--out", str(tmp_path / "new"))
    assert done.exit_code == 0
    assert (tmp_path / "new" / "report.html").exists()


def test_errors_are_infctls_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no workload named"):
        invoke("http://127.0.0.1:1", "--workload", "nope", "--out", str(tmp_path))
    with pytest.raises(UsageError, match="NAME=VALUE"):
        invoke("http://127.0.0.1:1", "--set", "x", "--out", str(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        invoke("report", str(tmp_path / "none.json"))


@pytest.mark.parametrize("option", [["--limit", "0"], ["--speed", "-1"], ["--api", "x"]])
def test_usage(option: list[str]) -> None:
    assert invoke("http://127.0.0.1:1", *option).exit_code == 2
