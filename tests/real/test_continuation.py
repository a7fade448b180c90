"""Real engines that die or stop in the middle of an answer, and nobody who notices."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from .conftest import Fleet, Infctl, engine_python, until

TOKENS = 240
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "An engine dies. 引擎停了。"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "引擎停了, and then?"}]},
}
PROFILE = """
apiVersion: infctl/v1
kind: Profile
metadata: {{name: pair}}
extends: tiny-{engine}
pools: [{{name: tiny, units: {{ready: 2}}}}]
"""


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two engines behind one router."""
    python = engine_python(request.param)
    folder = tmp_path_factory.mktemp(f"pair-{request.param}")
    profile = folder / "pair.yaml"
    profile.write_text(PROFILE.format(engine=request.param))
    fleet = Fleet(Infctl(folder, request.param, python), str(profile), "pair")
    try:
        fleet.wait_ready()
        yield fleet
    finally:
        fleet.end()


def ready(fleet: Fleet) -> int:
    return int(fleet.metric(fleet.url, "infctl_endpoint_ready"))


def unit_pids(fleet: Fleet, name: str) -> list[int]:
    state = json.loads(
        (fleet.infctl.folder / "state/infctl/pair/units" / name / "status.json").read_text()
    )
    return [int(pid) for pid in state["status"]["pids"]]


def ask(fleet: Fleet, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        fleet.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def stream(fleet: Fleet, path: str, body: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The events of a stream whose engine gets a signal after 40 of them."""
    connection = http.client.HTTPConnection(urlsplit(fleet.url).netloc, timeout=90)
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    connection.request("POST", path, json.dumps(asked), {"content-type": "application/json"})
    answer = connection.getresponse()
    pids = unit_pids(fleet, answer.getheader("x-infctl-endpoint") or "")
    lines = []
    while line := answer.readline().strip():
        lines.append(line)
        answer.readline()
        if len(lines) == 40:
            for pid in pids:
                os.killpg(os.getpgid(pid), number)
    connection.close()
    assert lines[-1] == b"data: [DONE]", lines[-1]
    assert lines.count(b"data: [DONE]") == 1
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("path", REQUESTS)
def test_the_answer_goes_on(pair: Fleet, path: str, number: int) -> None:
    time.sleep(1.1)  # a page of metrics may be a second old, from before the last test's kill
    until(lambda: ready(pair) == 2, 150, "both engines are ready")
    body = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0} | REQUESTS[path]
    whole = ask(pair, path, body)
    choice = whole["choices"][0]
    wanted = choice["text"] if "text" in choice else choice["message"]["content"]
    continued = pair.metric(pair.url, "infctl_continuations_total")
    events = stream(pair, path, body, number)
    choices = [c for e in events for c in e["choices"]]
    said = [c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices]
    assert "".join(said) == wanted
    assert len({e["id"] for e in events}) == 1
    usage, expected = events[-1]["usage"], whole["usage"]
    metric = "infctl_continuations_total"
    until(lambda: pair.metric(pair.url, metric) == continued + 1, 3, "counted")
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[count] == expected[count]
