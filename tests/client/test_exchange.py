import pytest

from infctl.client import exchange as module
from infctl.client.exchange import Exchange


def test_it_ends_once() -> None:
    ended: list[str] = []
    exchange = Exchange(b"", lambda e: ended.append(e.error))
    exchange.finish(1.0, "timeout")
    exchange.finish(2.0)
    assert ended == ["timeout"]
    assert exchange.ended_s == 1.0


def test_a_stream_notes_its_first_and_last_content() -> None:
    seen: list[int] = []
    exchange = Exchange(b"", lambda e: None, seen.append)
    exchange.headers_done(200, is_stream=True)
    exchange.feed(b'data: {"choices":[{"text":"a"}]}\n\n', 1.0)
    exchange.feed(b'data: {"choices":[{"text":"b"}]}\n\n', 2.0)
    exchange.feed(b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n', 3.0)
    exchange.finish(4.0)
    assert (exchange.first_s, exchange.last_s, seen, exchange.error) == (1.0, 2.0, [1, 1], "")
    assert exchange.usage() == {"prompt_tokens": 3}


@pytest.mark.parametrize(
    ("status", "is_stream", "data", "error"),
    [
        (429, False, b"{}", "HTTP 429"),
        (200, True, b'data: {"choices":[{"text":"a"}]}\n\n', "stream cut off"),
        (200, True, b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n', "error event"),
        (200, False, b'{"usage":{"prompt_tokens":1}}', ""),
    ],
)
def test_verdicts(status: int, is_stream: bool, data: bytes, error: str) -> None:
    exchange = Exchange(b"", lambda e: None)
    exchange.headers_done(status, is_stream)
    exchange.feed(data, 1.0)
    exchange.finish(2.0)
    assert exchange.error.startswith(error)
    assert bool(exchange.error) == bool(error)


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 10)
    exchange = Exchange(b"", lambda e: None)
    exchange.headers_done(500, False)
    with pytest.raises(ValueError, match="larger"):
        exchange.feed(b"x" * 11, 1.0)


def test_a_body_that_is_not_json() -> None:
    exchange = Exchange(b"", lambda e: None)
    exchange.headers_done(200, False)
    exchange.feed(b"<html>", 1.0)
    assert exchange.json() is None
    assert exchange.usage() == {}
