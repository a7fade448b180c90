"""The process: start, ports, signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from .conftest import FAST

COMMAND = [
    *(sys.executable, "-m", "infctl.emulator", "--model", "m"),
    *("--timing-json", msgspec.json.encode(FAST).decode()),
]


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An emulator process and its URL, once it says that it is ready."""
    process = subprocess.Popen([*COMMAND, "--port", "0", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        ready = next(line for line in lines if "ready on " in line)
        yield process, ready.split("ready on ")[1].strip()
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_it_starts_cheaply_and_leaves_on_sigterm() -> None:
    with running() as (process, url):
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            assert answer.status == 200
        with open(f"/proc/{process.pid}/stat") as stat:
            user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
        assert (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") < 1.0
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert time.monotonic() - began < 1.0


def test_a_fault_kills_it() -> None:
    with running() as (process, url):
        request = urllib.request.Request(url + "/fault", data=b'{"mode": "die"}', method="POST")
        urllib.request.urlopen(request, timeout=5).close()
        assert process.wait(5) == 1


def test_the_port_opens_after_the_start_up_time() -> None:
    began = time.monotonic()
    with running("--startup-s", "2", "--speed", "8"):
        assert time.monotonic() - began > 0.25


def test_a_taken_port_is_one_line_and_exit_code_4() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "--port", port], capture_output=True, text=True, timeout=10, check=False
        )
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "another --port" in done.stderr


def test_bad_usage_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [*COMMAND, "--speed", "x"], capture_output=True, text=True, timeout=10, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_error_is_two_sentences_on_a_line() -> None:
    command = [*COMMAND[:-2], "--timing-json", "{"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "truncated. It is JSON with prefill" in done.stderr


def test_it_imports_little() -> None:
    code = "import sys, infctl.emulator.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "rich", "pydantic", "zmq", "yaml", "infctl.compose"}
    assert not heavy & set(done.stdout.split())
