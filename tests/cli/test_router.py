"""`infctl router` as a process."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


FLEET = """\
metadata: {name: stopping}
models: [{name: m, timing: deepseek-v3-8xh200-tp8}]
engine: {type: emulated}
pools: [{name: a, units: {ready: 1}}]
routing: {drain_s: 0.5}
"""


def test_what_waits_when_the_drain_ends_gets_a_503(shell: Any) -> None:
    fleet = shell.start("up", shell.profile(FLEET), "--port", "0")
    url = next(line for line in fleet.stdout if " is ready: " in line).split(" is ready: ")[1]

    def ask(number: int) -> tuple[int, str | None]:
        body = {"model": "m", "prompt": f"{number} " + "word " * 60_000, "max_tokens": 2}
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(f"{url.strip()}/completions", data)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                answer.read()
                return int(answer.status), None
        except urllib.error.HTTPError as error:
            return error.code, error.headers["retry-after"]

    with ThreadPoolExecutor(6) as threads:
        asks = [threads.submit(ask, number) for number in range(6)]
        time.sleep(1.0)
        stop(fleet.pid)
        statuses = [each.result() for each in asks]
    assert statuses.count((503, "1")) >= 4
    assert set(statuses) <= {(200, None), (503, "1")}


def stop(parent: int) -> None:
    """Ask the router of a fleet, and it alone, to stop."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        command = entry.read_bytes().split(b"\0") if entry.exists() else []
        stat = (entry.parent / "stat").read_text().rpartition(")")[2].split() if command else []
        if b"router" in command and stat and int(stat[1]) == parent:
            os.kill(int(entry.parent.name), signal.SIGTERM)
