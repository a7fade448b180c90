"""What decisions learn of a body."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from infctl.core.request import Request
from infctl.router.intake import Intake
from infctl.router.wire import BadRequest, parse_head

INTAKE = Intake(("kv_transfer_params",), (), seed=7, priorities=("interactive", "batch"))


def read(body: Any, *headers: str) -> Request:
    lines = "".join(f"{h}\r\n" for h in headers)
    head = parse_head(f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n{lines}\r\n".encode())
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return INTAKE.read(head, data, lambda: "default")[0]


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": c} for c in contents], **more}


def test_a_growing_conversation_extends_its_hashes() -> None:
    first = read(chat("a" * 2000))
    second = read(chat("a" * 2000, "b" * 2000))
    assert second.blocks[: len(first.blocks)] == first.blocks
    assert len(second.blocks) > len(first.blocks) > 0


def test_whatever_separates_caches_separates_hashes() -> None:
    plain = read(chat("a" * 2000)).blocks[0]
    others = [
        read(chat("a" * 2000, cache_salt="s")).blocks[0],
        read(chat("a" * 2000, tools=[{"type": "function"}])).blocks[0],
        read({**chat("a" * 2000), "model": "n"}).blocks[0],
    ]
    assert len({plain, *others}) == 4


def test_pictures_count_as_pictures_not_as_text() -> None:
    pixels = base64.b64encode(bytes(300_000)).decode()
    other = base64.b64encode(b"x" + bytes(299_999)).decode()

    def picture(data: str) -> Request:
        url = {"url": f"data:image/png;base64,{data}"}
        return read(
            chat([{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": url}])
        )

    request = picture(pixels)
    assert request.extra_tokens == 1024
    assert request.prompt_bytes < 500
    assert not request.plain_text
    assert picture(other).blocks[-1] != request.blocks[-1]


def test_the_word_image_in_plain_text_is_text() -> None:
    request = read(chat('an "image_url": in words ' * 50))
    assert (request.extra_tokens, request.plain_text) == (0, True)


def test_token_ids_do_not_teach_the_size_of_a_token() -> None:
    assert not read({"model": "m", "prompt": [15496, 995]}).plain_text
    assert read({"model": "m", "prompt": "15 apples"}).plain_text


def test_lenient_where_engines_are() -> None:
    assert read({"prompt": "x"}).model == "default"
    assert read(chat("x", max_completion_tokens=5)).max_tokens == 5
    assert read(chat("x", stream=True)).stream
    assert read({"model": "m", "input": ["a", "b"]}).prompt_bytes > 0
    assert read({"model": "m", "prompt": ""}).blocks == []
    assert read({"model": "m", "messages": []}).blocks == []


def test_sessions_and_request_ids() -> None:
    assert read(chat("x", user="u1")).session == "u1"
    assert read(chat("x", user="u1"), "X-Session-Id: s").session == "s"
    head = parse_head(b"POST /x HTTP/1.1\r\nHost: r\r\nX-Request-Id: ok-1\r\n\r\n")
    assert INTAKE.request_id(head) == b"ok-1"
    bad = parse_head(b"POST /x HTTP/1.1\r\nHost: r\r\nX-Request-Id: a b\r\n\r\n")
    fresh = {INTAKE.request_id(bad) for _ in range(3)}
    assert len(fresh) == 3
    assert b"a b" not in fresh


def test_the_shape_of_a_parameter_is_the_engines_to_judge() -> None:
    assert read({"max_tokens": "16", "stream": "yes"}).max_tokens == 16
    assert read({"max_tokens": 16.0, "stream": "false"}).max_tokens == 16
    assert read({"max_tokens": "many", "stream": 1}).max_tokens == 0
    assert read({"max_tokens": -5}).max_tokens == 0
    assert read({"stream": "yes"}).stream
    assert not read({"stream": "false"}).stream
    assert read({"user": 7}).session == "7"
    salted = [read(chat("a" * 2000, cache_salt=salt)).blocks[0] for salt in (5, "5", None)]
    assert len(set(salted)) == 2


def test_a_name_that_would_be_kept_has_a_bound() -> None:
    with pytest.raises(BadRequest, match="longer than 512"):
        read({"model": "m" * 513})
    assert read(chat("a" * 2000, cache_salt="s" * 100_000)).blocks
    assert all(len(salt) <= 512 for _, salt in INTAKE._seeds)


def test_forms_pass_where_they_belong_alone() -> None:
    body = b'{"model": "m", "kv_transfer_params": {}}'

    def form(path: str, kind: str = "multipart/form-data; boundary=x") -> Request:
        text = f"POST {path} HTTP/1.1\r\nHost: r\r\nContent-Type: {kind}\r\n\r\n"
        return INTAKE.read(parse_head(text.encode()), body, lambda: "default")[0]

    assert form("/v1/audio/transcriptions").model == "default"
    for path in ("/v1/completions", "/v1/chat/completions?x", "/tokenize", "/v1/audio/speech"):
        for kind in ("multipart/form-data", "Multipart/x"):
            with pytest.raises(BadRequest, match="takes JSON"):
                form(path, kind)
