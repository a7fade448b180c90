"""Bytes of answers, in both dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infctl.emulator import wire
from infctl.emulator.wire import Shape, Usage

CASES = [(dialect, chat) for dialect in ("vllm", "sglang") for chat in (False, True)]


def shape(dialect: str, chat: bool) -> Shape:
    """A shape whose model name needs escaping."""
    return Shape(dialect=dialect, chat=chat, id="i", created=1, model='a "b"')


def decoded(data: bytes) -> list[dict[str, Any]]:
    """The JSON of every event."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def text_of(event: dict[str, Any]) -> str | None:
    """An event's text, wherever the API puts it."""
    choice = event["choices"][0]
    return str(choice["text"]) if "text" in choice else choice["delta"].get("content")


@pytest.mark.parametrize(("dialect", "chat"), CASES)
def test_many_events_are_one_join(dialect: str, chat: bool) -> None:
    events = wire.events(shape(dialect, chat))
    made = decoded(events.tokens([b"ab", b"cd", b"ef"]))
    assert [text_of(e) for e in made] == ["ab", "cd", "ef"]
    assert {e["model"] for e in made} == {'a "b"'}
    assert {e["choices"][0]["finish_reason"] for e in made} == {None}
    assert made[0]["object"] == ("chat.completion.chunk" if chat else "text_completion")


@pytest.mark.parametrize(("dialect", "chat"), CASES)
def test_the_last_event_has_the_reason(dialect: str, chat: bool) -> None:
    events = wire.events(shape(dialect, chat))
    made = decoded(events.last(b"zz", "length"))
    assert text_of(made[0]) == "zz"
    assert made[-1]["choices"][0]["finish_reason"] == "length"
    assert len(made) == (2 if (dialect, chat) == ("sglang", True) else 1)


@pytest.mark.parametrize(("dialect", "chat"), CASES)
def test_whole_answers(dialect: str, chat: bool) -> None:
    body = json.loads(wire.answer(shape(dialect, chat), "abc", "stop", Usage(5, 2, 4)))
    choice = body["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == "abc"
    assert choice["finish_reason"] == "stop"
    assert ("stop_reason" in choice) == (dialect == "vllm")
    assert body["usage"]["total_tokens"] == 7
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_usage_events_have_no_choices() -> None:
    (event,) = decoded(wire.events(shape("vllm", True)).usage(Usage(1, 2, 0)))
    assert event["choices"] == []
    assert event["usage"]["prompt_tokens"] == 1


def test_errors_are_nested_in_vllm_alone() -> None:
    nested = json.loads(wire.error("vllm", 404, "no", "model"))
    assert nested == {
        "error": {"message": "no", "type": "NotFoundError", "param": "model", "code": 404}
    }
    flat = json.loads(wire.error("sglang", 400, "no"))
    assert (flat["object"], flat["message"], flat["code"]) == ("error", "no", 400)
