"""Real engines behind a router, started as a user starts them: by `infctl up`."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

START_S = 120.0


def until(met: Callable[[], Any], seconds: float, what: str) -> None:
    """Fail unless it is met within so long."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, f"after {seconds:g} s not yet: {what}"
        time.sleep(0.05)


def alive(process: psutil.Process) -> bool:
    """Whether it runs, and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Infctl:
    """Runs infctl with a state folder and an engine's Python of its own."""

    def __init__(self, folder: Path, engine: str, python: str) -> None:
        self.folder = folder
        self.engine = engine
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            f"INFCTL_{engine.upper()}_PYTHON": python,
            "VLLM_SERVER_DEV_MODE": "1",  # vLLM serves its most dangerous paths: a harder test
            "COLUMNS": "120",
        }

    def start(self, *arguments: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start and go on."""
        with open(self.folder / "stderr", "a") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "infctl", *arguments],
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )

    def run(self, *arguments: str, timeout_s: float = 60) -> str:
        """Run to the end; what it printed. Anything but exit code 0 fails."""
        process = self.start(*arguments)
        try:
            out, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, self.stderr() + out
        return out

    def stderr(self) -> str:
        """What all commands so far wrote to standard error."""
        return (self.folder / "stderr").read_text()


class Fleet:
    """`infctl up` with one real engine, or what another profile asks for."""

    def __init__(self, infctl: Infctl, profile: str = "", name: str = "") -> None:
        self.infctl = infctl
        self.engine = infctl.engine
        self.name = name or f"tiny-{infctl.engine}"
        self.state: dict[str, Any] = {}
        self.processes: set[psutil.Process] = set()
        self.up = infctl.start("up", profile or self.name, "--port", "0", "--json")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.up.stdout
        for line in self.up.stdout:
            self.state = json.loads(line)

    def wait_ready(self) -> None:
        """Wait until it serves, and note its processes."""
        until(lambda: self.state or self.up.poll() is not None, START_S, "ready")
        assert self.state, self.infctl.stderr()
        self.processes = set(psutil.Process(self.up.pid).children(recursive=True))

    @property
    def url(self) -> str:
        """The router's."""
        return str(self.state["url"])

    @property
    def engine_url(self) -> str:
        """The engine's own."""
        return str(self.state["units"][0]["url"])

    def post(self, base: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and bytes of an answer; the path is sent as it is."""
        connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=30)
        try:
            connection.request(
                "POST", path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metrics(self, base: str) -> str:
        """A /metrics text."""
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, base: str, name: str) -> float:
        """The sum over a series' labels."""
        lines = (line for line in self.metrics(base).splitlines() if line.startswith(name))
        return sum(float(line.split()[-1]) for line in lines if line[len(name)] in "{ ")

    def requests_logged(self) -> list[dict[str, str]]:
        """The router's access log, oldest first."""
        log = self.infctl.folder / "state/infctl" / self.name / "router.log"
        lines = [line.split() for line in log.read_text().splitlines()]
        return [
            dict(pair.split("=", 1) for pair in line[2:] if "=" in pair)
            for line in lines
            if line[1] == "request"
        ]

    def kill(self) -> None:
        """End `infctl up` as nobody should."""
        self.up.kill()
        self.up.wait()

    def terminate(self) -> int:
        """End `infctl up` as its user does; its exit code."""
        self.up.send_signal(signal.SIGTERM)
        return self.up.wait(30)

    def until_nothing_runs(self, seconds: float) -> None:
        """Fail unless all of its processes are gone in so long."""
        until(lambda: not any(map(alive, self.processes)), seconds, "every process has ended")

    def end(self) -> None:
        """Leave nothing behind, whatever became of it."""
        if self.up.poll() is None:
            self.terminate()
        self._reader.join(10)
        for process in filter(alive, self.processes):
            process.kill()


def engine_python(engine: str) -> str:
    """The engine's Python; skips the test where none is named."""
    variable = f"INFCTL_{engine.upper()}_PYTHON"
    python = os.environ.get(variable)
    if not python:
        pytest.skip(
            f"no {engine}: set {variable} to the Python of its environment "
            f"(.ci/engine-env {engine} DIR makes one)"
        )
    return python


@pytest.fixture
def infctl(tmp_path: Path, request: pytest.FixtureRequest) -> Infctl:
    """Commands for the engine that a test names by `parametrize(…, indirect=True)`."""
    return Infctl(tmp_path, request.param, engine_python(request.param))


@pytest.fixture
def up() -> Iterator[Callable[[Infctl], Fleet]]:
    """Starts fleets that end with the test."""
    started: list[Fleet] = []

    def start(infctl: Infctl) -> Fleet:
        started.append(Fleet(infctl))
        return started[-1]

    yield start
    for fleet in started:
        fleet.end()


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """One running fleet of each engine in turn: they do not fit a small machine together."""
    python = engine_python(request.param)
    fleet = Fleet(Infctl(tmp_path_factory.mktemp(request.param), request.param, python))
    try:
        fleet.wait_ready()
        yield fleet
    finally:
        fleet.end()
