"""`infctl calibrate` against emulated engines, whose coefficients are known."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from infctl import compose
from infctl.cli.calibrate import app
from infctl.errors import TargetError
from infctl.timing import Decode, Prefill, TimingModel

pytestmark = pytest.mark.process

TRUTH = TimingModel(
    Prefill(8.0, 0.04, 2e-6), Decode(5.0, 0.8, 0.1, 1e-4), 60_000, "", ttft_overhead_ms=6.0,
    interference=0.8,
)  # fmt: skip


@pytest.fixture
def emulator() -> Iterator[Callable[..., tuple[str, subprocess.Popen[bytes]]]]:
    started = []

    def start(*options: str) -> tuple[str, subprocess.Popen[bytes]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "infctl.emulator", "--model", "m", "--port", str(port)]
        command += ["--timing-json", msgspec.json.encode(TRUTH).decode()]
        command += ["--context-tokens", "2048", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started.append(process)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return f"http://127.0.0.1:{port}", process
            time.sleep(0.05)
        raise AssertionError("the emulator does not listen")

    yield start
    for process in started:
        process.kill()
        process.wait()


def calibrate(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_an_emulated_engines_coefficients_are_found(emulator, tmp_path: Path) -> None:
    url, _ = emulator()
    out = tmp_path / "timing.yaml"
    done = calibrate(url, "--out", str(out))
    assert done.exit_code == 0
    assert "median error" in done.output
    found = compose.timing(str(out))
    assert found.kv_capacity_tokens == 60_000
    for new, cached in ((100, 0), (1800, 0), (100, 1400)):
        wanted = TRUTH.prefill_ms(new, cached) + TRUTH.ttft_overhead_ms
        got = found.prefill_ms(new, cached) + found.ttft_overhead_ms
        assert got == pytest.approx(wanted, rel=0.12)
    for batch, context in ((1, 100), (8, 4000), (32, 4000)):
        wanted = TRUTH.decode_step_ms(batch, context)
        assert found.decode_step_ms(batch, context) == pytest.approx(wanted, rel=0.12)


def test_an_engine_that_fails_on_the_way_is_told_with_what_is_missing(
    emulator, tmp_path: Path
) -> None:
    url, _ = emulator("--fault", '{"mode": "error", "status": 500, "after_tokens": 40}')
    out = tmp_path / "timing.yaml"
    with pytest.raises(TargetError, match="there is no model") as raised:
        calibrate(url, "--out", str(out))
    assert "HTTP 500" in str(raised.value)
    assert not out.exists()


def test_nobody_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="running"):
        calibrate("http://127.0.0.1:9", "--out", str(tmp_path / "timing.yaml"))
