"""The router's metrics as Prometheus itself reads them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def router_url(tmp_path: Path) -> Iterator[str]:
    """A router before two emulated engines."""
    arguments = ["up", "demo", "--port", "0", "--json", "--set", "pools.chat.units.ready=2"]
    with subprocess.Popen(
        [sys.executable, "-m", "infctl", *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.communicate(timeout=20)


def ask(url: str, model: str) -> None:
    body = {"model": model, "prompt": "Hello " * 900, "max_tokens": 4, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.read()


def test_promtool_finds_nothing_wrong(router_url: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: install Prometheus (Debian: apt-get install prometheus)")
    ask(router_url, "deepseek-v3")
    with pytest.raises(urllib.error.HTTPError):
        ask(router_url, "nobody")
    with urllib.request.urlopen(f"{router_url}/metrics", timeout=10) as answer:
        text = answer.read()
    assert text.count(b"\ninfctl_") > 50
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
