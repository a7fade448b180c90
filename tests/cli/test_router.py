"""`infctl router` as a process."""

from __future__ import annotations

import signal
from typing import Any

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_clean_drain_is_done(shell: Any, number: signal.Signals) -> None:
    process = shell.start("router", "--endpoint", "http://127.0.0.1:9", "--port", "0",
                          "--admin", str(shell.folder / "a.sock"))  # fmt: skip
    while not (shell.folder / "a.sock").exists():
        assert process.poll() is None, process.communicate()[1]
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 0, stderr
    assert "drained cut=0" in stderr
