"""The generic engine: nothing is known, nothing is claimed."""

from __future__ import annotations

import pytest

from infctl.plugin import InputError, Probe, UnitSpec
from infctl.testing.conformance import check_engine
from infctl_plugins.engines.openai import OpenAI

OPENAI = OpenAI()


def test_conformance() -> None:
    check_engine(OPENAI)


def test_it_cannot_be_started() -> None:
    unit = UnitSpec(unit="u", model="m", model_path="m", host="h", port=1)
    with pytest.raises(InputError, match="cannot start") as caught:
        OPENAI.commands(unit)
    assert "--endpoint URL" in str(caught.value.hint)


def test_it_claims_no_metrics() -> None:
    assert OPENAI.metrics_path is None
    assert OPENAI.loads("vllm:num_requests_running 1\n") == {}
    assert OPENAI.missing("") == ()


@pytest.mark.parametrize(
    ("models", "found"),
    [
        (b'{"object":"list","data":[{"id":"gpt","object":"model"}]}', True),
        (b'{"object":"list","data":[]}', False),
        (b'{"models":["gpt"]}', False),
        (b"<html>", False),
        (b"\xff", False),
    ],
)
def test_recognition(models: bytes, found: bool) -> None:
    assert OPENAI.recognises(Probe(models=models)) is found
