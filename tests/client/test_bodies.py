import json

import pytest

from infctl.client.bodies import body
from infctl.workload.model import Segment, WorkloadRequest
from infctl.workload.text import render

REQUEST = WorkloadRequest(0.0, (Segment(1, 100), Segment(2, 30)), 17)


def test_a_completion_body() -> None:
    found = json.loads(body(REQUEST, 'a"b', "completions", 4))
    assert found == {
        "model": 'a"b',
        "prompt": render(REQUEST, 4),
        "max_tokens": 17,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_body() -> None:
    found = json.loads(body(REQUEST, "m", "chat", 4))
    assert found["messages"] == [{"role": "user", "content": render(REQUEST, 4)}]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_without_a_stream(api) -> None:
    assert "stream" not in json.loads(body(REQUEST, "m", api, 4, stream=False))
