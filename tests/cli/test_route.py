"""`infctl route`, against a router that really runs."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.process

FLEET = """\
metadata: {name: explained}
models: [{name: m, aliases: [n], timing: qwen3-8b-bf16-1xh100}]
engine: {type: emulated}
pools: [{name: a, units: {ready: 2}}]
routing: {drain_s: 1, scorers: [predicted-ttft, {type: least-request, weight: 2}]}
"""


def complete(url: str, name: str) -> None:
    body = {"model": "m", "prompt": "word " * 400, "max_tokens": 3, "stream": True}
    body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(
        f"{url}/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-request-id": name},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def url_of(process: Any) -> str:
    for line in process.stdout:
        if " is ready: " in line:
            return str(line.split(" is ready: ")[1].strip())
    raise AssertionError(process.stderr.read())


def test_a_request_is_explained(shell: Any) -> None:
    process = shell.start("up", shell.profile(FLEET), "--port", "0")
    url = url_of(process)
    early = shell.run("route", "explain")
    assert (early.returncode, "no decision yet" in early.stderr) == (3, True)
    complete(url, "first")
    complete(url, "second")
    told = shell.run("route", "explain", "second", "--fleet", "explained")
    assert told.returncode == 0, told.stderr
    assert "second → a-" in told.stdout
    assert "← picked" in told.stdout
    assert "PREDICTED-TTFT" in told.stdout
    assert " from cache, expected " in told.stdout
    latest = json.loads(shell.run("route", "explain", "--json").stdout)
    assert latest["decisions"][0]["request"] == "second"
    asked = shell.run("route", "explain", "--prompt", "word " * 400)
    assert "A prompt of about 500 tokens for m, now:" in asked.stdout
    assert asked.stdout.count(" ms") >= 2
    unknown = shell.run("route", "explain", "nope")
    assert (unknown.returncode, "no decision about 'nope'" in unknown.stderr) == (3, True)
    both = shell.run("route", "explain", "x", "--prompt", "y")
    assert both.returncode == 2
    process.terminate()
    process.wait(10)


def test_without_a_router_it_says_so(shell: Any) -> None:
    told = shell.run("route", "explain")
    assert (told.returncode, "no router runs here" in told.stderr) == (5, True)


def test_the_table_in_every_form(shell: Any) -> None:
    name = shell.profile(FLEET)
    rows = json.loads(shell.run("route", "table", name, "-o", "json").stdout)
    assert rows[0]["endpoints"] == ["a-0", "a-1"]
    assert "endpoints:\n" in shell.run("route", "table", name, "-o", "yaml").stdout
    table = shell.run("route", "table", name).stdout
    assert "m, n" in table
    assert "100%" in table
