"""The README's commands, as it writes them: what is shown must run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SHORT = ["--for", "1s", "--port", "0"]
MEASURE = ["--limit", "20", "--speed", "12", "--port", "0"]

# What needs something of the reader's (a trace, engines, a running fleet) is run elsewhere, by the
# test named here.
ELSEWHERE = {
    "infctl up tiny-vllm": "tests/real/test_engines.py",
    "infctl router --endpoint": "tests/real/test_engines.py",
    "infctl up demo --bench --workload trace.jsonl": "tests/cli/test_up_bench.py",
    "infctl bench run http": "tests/real/test_engines.py",
    "infctl route explain": "tests/cli/test_route.py",
    "infctl calibrate": "tests/cli/test_calibrate.py",
    "pip install": ".ci/run",
    "curl": "tests/real/test_engines.py",
    "python -m infctl.emulator": "tests/emulator/test_main.py",
}


def commands() -> list[str]:
    """Every line of the README's console blocks, continued lines joined, comments cut off."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def here() -> list[str]:
    return [c for c in commands() if not c.startswith(tuple(ELSEWHERE))]


def test_what_is_run_elsewhere_is_still_shown_and_still_run() -> None:
    for start, test in ELSEWHERE.items():
        if start.startswith("python -m"):
            assert start in README.read_text()
        else:
            assert any(c.startswith(start) for c in commands()), start
        assert (README.parent / test).exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: later commands use what earlier ones wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("command", here())
def test_a_command_of_the_readme_runs(command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "infctl"
    if "--bench" in arguments:
        if "--limit" in arguments:
            at = arguments.index("--limit")
            del arguments[at : at + 2]
        arguments += MEASURE
    elif arguments[0] == "up":
        arguments += SHORT
    done = subprocess.run(
        [sys.executable, "-m", "infctl", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
