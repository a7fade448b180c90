import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.client.sse import EventScanner


def event(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


TOKEN = event({"choices": [{"text": "data: a\n\ndata:"}]})
ROLE = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
CHAT = event({"choices": [{"delta": {"content": "hi"}}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
DONE = event("[DONE]")


def test_events_are_counted_and_usage_found() -> None:
    scanner = EventScanner()
    counts = [scanner.feed(part) for part in (TOKEN, TOKEN * 2, USAGE + DONE)]
    assert counts == [1, 2, 0]
    assert (scanner.content, scanner.done) == (3, True)
    assert scanner.last_objects()[0]["usage"]["completion_tokens"] == 3


def test_a_role_is_no_content() -> None:
    scanner = EventScanner()
    assert scanner.feed(ROLE) == 0
    assert not scanner.started
    assert scanner.feed(CHAT) == 1
    assert scanner.content == 1


def test_content_usage_and_end_in_one_piece() -> None:
    scanner = EventScanner()
    scanner.feed(TOKEN)
    assert scanner.feed(TOKEN + USAGE + DONE) == 1
    whole = EventScanner()
    assert whole.feed(TOKEN * 2 + USAGE + DONE) == 2
    assert whole.done


def test_a_single_byte_is_kept_for_what_follows() -> None:
    scanner = EventScanner()
    data = ROLE + CHAT * 2 + DONE
    assert sum(scanner.feed(data[i : i + 1]) for i in range(len(data))) == 2


@given(st.integers(1, 30), st.lists(st.integers(1, 400), max_size=30), st.booleans())
def test_any_split_and_line_ending_gives_the_same_counts(
    tokens: int, cuts: list[int], crlf: bool
) -> None:
    data = ROLE + b": a comment\n\n" + CHAT * tokens + USAGE + DONE
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    scanner = EventScanner()
    total = start = 0
    for cut in cuts:
        total += scanner.feed(data[start : start + cut])
        start += cut
    total += scanner.feed(data[start:])
    assert (total, scanner.content) == (tokens, tokens)
    assert scanner.done
    assert scanner.last_objects()[0]["usage"]["prompt_tokens"] == 9


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_garbage_never_breaks_it(parts: list[bytes]) -> None:
    scanner = EventScanner()
    for part in parts:
        scanner.feed(part)
    scanner.last_objects()
    assert scanner.events >= 0


def test_an_event_without_end_is_bounded() -> None:
    scanner = EventScanner()
    scanner.feed(b"data: " + b"x" * (8 << 19))
    with pytest.raises(ValueError, match="8 MiB"):
        scanner.feed(b"x" * (8 << 19))
