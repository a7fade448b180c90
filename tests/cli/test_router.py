"""`infctl router` as a process."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..router.certificates import Authority

pytestmark = pytest.mark.process

FLEET = """\
metadata: {name: guarded}
models: [{name: m, timing: qwen3-8b-bf16-1xh100}]
engine: {type: emulated}
pools: [{name: a}]
routing:
  drain_s: 1
  keys_file: keys.yaml
  tls: {cert_file: router.pem, key_file: router.key}
  limits: {body_mib_max: 1}
"""


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


def test_a_terminal_that_goes_away_ends_it(shell: Any) -> None:
    """There SIGHUP does not ask to reload."""
    master, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "infctl", "router", "--endpoint", "http://127.0.0.1:9",
         "--port", "0", "--admin", str(shell.folder / "a.sock")],
        env=shell.env, cwd=shell.folder, preexec_fn=lambda: os.login_tty(terminal),
    )  # fmt: skip
    os.close(terminal)
    while not (shell.folder / "a.sock").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)  # somebody asks while the terminal is there
    time.sleep(0.3)
    assert process.poll() is None
    os.close(master)
    assert process.wait(timeout=20) == 0


class Client:
    """Asks a router over TLS."""

    def __init__(self, url: str, authority: Authority) -> None:
        self.url = url
        self.context = authority.trust()

    def complete(self, key: str | None, size: int = 10) -> tuple[int, Any]:
        body = {"model": "m", "prompt": "w" * size, "max_tokens": 2}
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/completions", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def certificate(self) -> str:
        host, _, port = self.url.split("/")[2].partition(":")
        return ssl.get_server_certificate((host, int(port)))


def url_of(process: Any) -> str:
    for line in process.stdout:
        if " is ready: " in line:
            return str(line.split(" is ready: ")[1].strip())
    raise AssertionError(process.stderr.read())


def within(seconds: float, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def router_of(shell: Any) -> psutil.Process:
    return next(p for p in shell.running() if "router" in p.cmdline() and "infctl" in p.cmdline())


def test_a_guarded_router_follows_its_files(shell: Any) -> None:
    authority = Authority(shell.folder)
    authority.issue("router")
    added = shell.run("router", "keys", "add", "keys.yaml", "one")
    assert added.returncode == 0, added.stderr
    key = added.stdout.strip()
    process = shell.start("up", shell.profile(FLEET), "--port", "0")
    url = url_of(process)
    assert url.startswith("https://127.0.0.1:")
    client = Client(url, authority)
    assert [client.complete(k)[0] for k in (key, None, "sk-x")] == [200, 401, 401]
    assert client.complete(key, 3_000_000)[0] == 413  # on uvloop, over TLS, and read all the same

    # Keys and certificates follow their files.
    other = shell.run("router", "keys", "add", "keys.yaml", "two").stdout.strip()
    assert shell.run("router", "keys", "remove", "keys.yaml", "one").returncode == 0
    before = client.certificate()
    authority.issue("router")
    within(8, lambda: client.complete(other)[0] == 200 and client.certificate() != before)
    assert client.complete(key)[0] == 401

    # The profile follows a command, and a signal.
    shell.profile(FLEET.replace("body_mib_max: 1", "body_mib_max: 4") + "slo: {ttft_ms: 1}\n")
    reloaded = shell.run("router", "reload")
    assert (reloaded.returncode, reloaded.stdout) == (
        0,
        "guarded: routing.limits.body_mib_max, slo.ttft_ms\n",
    )
    assert client.complete(other, 3_000_000)[0] in (200, 400)
    shell.profile(FLEET.replace("pools: [{name: a}]", "pools: [{name: a, units: {ready: 2}}]"))
    assert "only after a restart: pools" in shell.run("router", "reload").stdout
    shell.profile(FLEET.replace("body_mib_max: 1", "body_mib_max: lots"))
    refused, validated = (
        shell.run("router", "reload"),
        shell.run("profile", "validate", "fake.yaml"),
    )
    assert (refused.returncode, refused.stderr) == (3, validated.stderr)
    assert "routing.limits.body_mib_max" in refused.stderr
    shell.profile(FLEET.replace("drain_s: 1", "drain_s: 2"))
    log = shell.state / "infctl" / "guarded" / "router.log"
    seen = log.read_text().count("profile_reloaded")
    router_of(shell).send_signal(signal.SIGHUP)
    within(5, lambda: log.read_text().count("profile_reloaded") > seen)
    assert client.complete(other)[0] == 200

    assert "tenant=two" in log.read_text()
    everything = log.read_text() + process_arguments(shell)
    assert key not in everything
    assert other not in everything
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    ended = log.read_text()
    assert "drained cut=0" in ended
    assert "exception" not in ended
    assert "Traceback" not in ended


def process_arguments(shell: Any) -> str:
    return " ".join(" ".join(p.cmdline()) for p in shell.running())


def test_the_admin_api_over_tcp_asks_for_its_token(shell: Any) -> None:
    token, file = "0123456789abcdef" * 2, shell.folder / "token"
    file.write_text(token)
    file.chmod(0o600)
    options = ["router", "--endpoint", "http://127.0.0.1:9", "--port", "0"]
    options += ["--admin", str(shell.folder / "a.sock")]
    process = shell.start(*options, "--admin-tcp", "127.0.0.1:0", "--admin-token-file", "token")
    line = process.stderr.readline()
    while "admin_tcp" not in line:
        assert line, process.stderr.read()
        line = process.stderr.readline()
    url = f"http://{line.strip().rpartition('address=')[2]}/v1/fleet"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, timeout=5)
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert "endpoints" in json.loads(answer.read())
    assert token not in process_arguments(shell)
    assert os.stat(shell.folder / "a.sock").st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    assert token not in process.communicate(timeout=20)[1]


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--admin-tcp", "127.0.0.1:0"], 2, "go together"),
        (["--admin-token-file", "token"], 2, "go together"),
        (["--admin-tcp", "nowhere", "--admin-token-file", "token"], 2, "HOST:PORT"),
        (["--admin-tcp", "0.0.0.0:0", "--admin-token-file", "token"], 2, "in clear"),
        (["--admin-tcp", "127.0.0.1:0", "--admin-token-file", "open"], 4, "chmod 600"),
        (["--admin-tcp", "127.0.0.1:0", "--admin-token-file", "short"], 3, "one token"),
    ],
)
def test_what_would_not_be_safe_does_not_start(
    more: list[str], code: int, words: str, shell: Any
) -> None:
    for name, mode, text in (("token", 0o600, "t" * 32), ("open", 0o644, "t" * 32),
                             ("short", 0o600, "t")):  # fmt: skip
        Path(shell.folder / name).write_text(text)
        Path(shell.folder / name).chmod(mode)
    found = shell.run("router", "--endpoint", "http://127.0.0.1:9", "--port", "0",
                      "--admin", str(shell.folder / "a.sock"), *more)  # fmt: skip
    assert (found.returncode, words in found.stderr) == (code, True), found.stderr


def test_a_router_that_is_open_to_others_says_so(shell: Any) -> None:
    process = shell.start("router", "--endpoint", "http://127.0.0.1:9", "--port", "0",
                          "--host", "0.0.0.0", "--admin", str(shell.folder / "a.sock"))  # fmt: skip
    while not (shell.folder / "a.sock").exists():
        assert process.poll() is None, process.communicate()[1]
    process.send_signal(signal.SIGTERM)
    assert "no_keys address=0.0.0.0:" in process.communicate(timeout=20)[1]


def test_overrides_hold_for_given_endpoints_too(shell: Any) -> None:
    """A router that was told to ask for keys must not run without."""
    options = ["router", "--endpoint", "http://127.0.0.1:9", "--port", "0",
               "--admin", str(shell.folder / "a.sock")]  # fmt: skip
    missing = shell.run(*options, "--set", "routing.keys_file=keys.yaml")
    assert (missing.returncode, "keys.yaml: cannot be read" in missing.stderr) == (4, True)
    misspelt = shell.run(*options, "--set", "routing.key_file=keys.yaml")
    assert (misspelt.returncode, "did you mean keys_file?" in misspelt.stderr) == (3, True)


STOPPING = """\
metadata: {name: stopping}
models: [{name: m, timing: deepseek-v3-8xh200-tp8}]
engine: {type: emulated}
pools: [{name: a, units: {ready: 1}}]
routing: {drain_s: 0.5}
"""


def test_what_waits_when_the_drain_ends_gets_a_503(shell: Any) -> None:
    fleet = shell.start("up", shell.profile(STOPPING), "--port", "0")
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
