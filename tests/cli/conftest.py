"""Commands as a user runs them: as processes, with state and home of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

FAKES = Path(__file__).parents[1] / "fakes"

FLEET = """\
metadata: {name: fake}
models: [{name: fake}]
engine: {type: "fake_engine:Fake"}
pools: [{name: a, units: {ready: 2}}]
routing: {drain_s: 1, scorers: [least-request]}
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that work for the state folder: started with it in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("XDG_STATE_HOME") == str(folder)
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


class Shell:
    """Runs infctl with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(self.state),
            "HOME": str(folder),
            "INFCTL_PLUGIN_PATH": str(FAKES),
            "NO_COLOR": "1",
            "COLUMNS": "100",
        }
        self.started: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "infctl", *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start and go on."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "infctl", *arguments],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def running(self) -> list[psutil.Process]:
        """All processes of this shell."""
        return processes_of(self.state)

    def until_nothing_runs(self, seconds: float) -> None:
        """Fail unless all processes are gone in so long."""
        deadline = time.monotonic() + seconds
        while left := self.running():
            assert time.monotonic() < deadline, left
            time.sleep(0.03)

    def profile(self, text: str = FLEET, name: str = "fake.yaml") -> str:
        """Write a profile."""
        (self.folder / name).write_text(text)
        return name


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Commands, none of which may leave a process behind."""
    shell = Shell(tmp_path)
    yield shell
    for process in shell.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    try:
        shell.until_nothing_runs(12)
    finally:
        for left in shell.running():
            left.kill()
