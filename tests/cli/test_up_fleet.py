"""A fleet heals itself: engines are stopped and killed, clients notice nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from infctl.cli.admin import ask

from .test_up import wait_ready

pytestmark = pytest.mark.process

FLEET = """\
metadata: {name: heal}
models: [{name: m, timing: deepseek-v3-8xh200-tp8}]
engine: {type: emulated, args: {kv_capacity_tokens: 200000}}
pools: [{name: a, units: {ready: 4}}]
"""


class Clients(threading.Thread):
    """Sends requests that are not streamed, several at once, until told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.statuses: Counter[str] = Counter()
        self.stop = threading.Event()
        self._netloc = urlsplit(url).netloc
        self._lock = threading.Lock()

    def run(self) -> None:
        workers = [threading.Thread(target=self._work, args=(n,)) for n in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self, worker: int) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            said = self._post(f"{worker}-{number} " * 50)
            with self._lock:
                self.statuses[said] += 1

    def _post(self, prompt: str) -> str:
        connection = http.client.HTTPConnection(self._netloc, timeout=60)
        try:
            body = {"model": "m", "prompt": prompt, "max_tokens": 20, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            data = answer.read()
            return str(answer.status) if answer.status == 200 else f"{answer.status} {data!r}"
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            connection.close()


def until(what: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def generations(folder: Path) -> dict[str, tuple[int, str, int]]:
    """Generation, state and pid by unit."""
    found = {}
    for file in folder.glob("units/*/status.json"):
        status = json.loads(file.read_bytes())["status"]
        pid = status["pids"][0] if status["pids"] else 0
        found[status["name"]] = (status["generation"], status["state"], pid)
    return found


def test_engines_that_hang_or_die_come_back_and_no_request_is_lost(shell: Any) -> None:
    process = shell.start("up", shell.profile(FLEET), "--port", "0")
    url = wait_ready(process)
    folder = shell.state / "infctl" / "heal"
    until(lambda: _ready(folder) == 4, 5)
    clients = Clients(url)
    clients.start()
    try:
        time.sleep(1)
        before = generations(folder)
        os.kill(before["a-0"][2], signal.SIGSTOP)
        os.kill(before["a-1"][2], signal.SIGKILL)
        until(lambda: _ready(folder) < 4, 10)
        until(lambda: _healed(folder, before), 30)
        time.sleep(1)
    finally:
        clients.stop.set()
        clients.join()
    assert set(clients.statuses) == {"200"}, clients.statuses
    log = (folder / "router.log").read_text()
    for unit in ("a-0", "a-1"):
        states = [line for line in log.splitlines() if f"endpoint={unit} state=" in line]
        moves = [line.split("state=")[1].split()[0] for line in states]
        assert moves == ["verifying", "ready", "ejected", "verifying", "ready"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)


def _fleet(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = ask(folder / "router.sock", "GET", "/v1/fleet")
    return found


def _ready(folder: Path) -> int:
    return sum(row["state"] == "ready" for row in _fleet(folder)["endpoints"])


def _healed(folder: Path, before: dict[str, tuple[int, str, int]]) -> bool:
    now = generations(folder)
    return _ready(folder) == 4 and all(now[u][0] > before[u][0] for u in ("a-0", "a-1"))
