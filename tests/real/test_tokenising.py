"""The router's count of prompt tokens is the engine's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Fleet, Infctl, engine_python

PROFILE = """
apiVersion: infctl/v1
kind: Profile
metadata: {{name: counted}}
extends: tiny-{engine}
models: [{{name: tiny, tokenizer: ~/.cache/infctl/tiny-model, context_tokens: {context}}}]
"""
CONTEXT = {"vllm": 2048, "sglang": 1024}
TEXT = "An engine counts, 引擎也数。 Naïve 👩‍💻 words  and spaces\n\tagain; " * 6
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "Yes <|end|> no."},
    {"role": "user", "content": [{"type": "text", "text": "And?"}]},
]
ASKED: dict[str, dict[str, Any]] = {
    "a completion": {"prompt": TEXT},
    "a completion of special tokens": {"prompt": f"<|user|>{TEXT}<|end|><|assistant|>"},
    "a completion of ids": {"prompt": [65 + n % 26 for n in range(300)]},
    "a chat": {"messages": MESSAGES},
    "a chat without a prompt for the answer": {
        "messages": MESSAGES, "add_generation_prompt": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """An engine behind a router that has its tokenizer."""
    engine = request.param
    python = engine_python(engine)
    folder = tmp_path_factory.mktemp(f"counted-{engine}")
    profile = folder / "counted.yaml"
    profile.write_text(PROFILE.format(engine=engine, context=CONTEXT[engine]))
    fleet = Fleet(Infctl(folder, engine, python), str(profile), "counted")
    try:
        fleet.wait_ready()
        yield fleet
    finally:
        fleet.end()


def told(fleet: Fleet, asked: dict[str, Any]) -> int:
    """How many tokens the engine says a prompt has."""
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    body = {"model": "tiny", "max_tokens": 2, "temperature": 0} | asked
    status, answer = fleet.post(fleet.url, path, body)
    assert status == 200, answer
    return int(json.loads(answer)["usage"]["prompt_tokens"])


def test_the_counts_agree(counted: Fleet) -> None:
    asked = {
        what: body
        for what, body in ASKED.items()
        if counted.engine == "vllm" or "add_generation_prompt" not in body
    }
    counts = {}
    for what, body in asked.items():
        for _ in range(5):  # on a busy machine tokens may be known too late for the decision
            tokens = told(counted, body)
            decisions = json.loads(counted.infctl.run("route", "explain", "--json"))["decisions"]
            counts[what] = (tokens, decisions[0]["prompt_tokens"])
            if tokens == counts[what][1]:
                break
    assert all(engine == router > 0 for engine, router in counts.values()), counts
    time.sleep(1.1)  # the page is up to a second old
    assert counted.metric(counted.url, "infctl_tokenizer_checked_requests_total") >= len(asked)
    assert counted.metric(counted.url, "infctl_tokenizer_error_tokens_total") == 0
