"""The soak, for as long as a test may take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
def test_nothing_is_lost_while_engines_are_killed_and_stopped(tmp_path: Path) -> None:
    soak = Path(__file__).with_name("soak.py")
    options = ["--seconds", "25", "--every", "6", "--units", "3", "--clients", "6"]
    done = subprocess.run(
        [sys.executable, str(soak), *options, "--json", str(tmp_path / "soak.json")],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["whole"]["stream"] > 20
    assert sum(found["chaos"].values()) >= 2
