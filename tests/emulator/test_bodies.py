"""Reading request bodies."""

from __future__ import annotations

import pytest

from infctl.emulator.bodies import BadRequest, parse, prompt_of, render


def test_unknown_fields_are_ignored() -> None:
    body = parse(b'{"prompt":"a","temperature":0.5,"nonsense":{"a":[1]}}', chat=False)
    assert body.prompt == "a"


def test_the_newer_limit_wins() -> None:
    both = b'{"prompt":"a","max_tokens":3,"max_completion_tokens":5}'
    assert parse(both, chat=False).limit == 5
    assert parse(b'{"prompt":"a","max_tokens":3}', chat=False).limit == 3
    assert parse(b'{"prompt":"a","max_tokens":null}', chat=False).limit is None


def test_errors_name_the_parameter() -> None:
    with pytest.raises(BadRequest) as caught:
        _ = parse(b'{"prompt":"a","max_tokens":-4}', chat=False).limit
    assert (caught.value.param, caught.value.status) == ("max_tokens", 400)
    assert "got -4" in caught.value.message


def test_a_conversation_as_text() -> None:
    text = b'{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}'
    body = parse(text, chat=True)
    assert render(body) == "<|user|>\nhi<|end|>\n<|assistant|>\nyo<|end|>\n<|assistant|>\n"
    flags = b'"continue_final_message":true,"add_generation_prompt":false,'
    body = parse(b"{" + flags + text[1:], chat=True)
    assert render(body) == "<|user|>\nhi<|end|>\n<|assistant|>\nyo"


def test_an_empty_message_is_a_message() -> None:
    body = parse(b'{"messages":[{"role":"user","content":""}]}', chat=True)
    assert prompt_of(body, chat=True, bytes_per_token=4).tokens > 0
