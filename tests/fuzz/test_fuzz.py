"""The fuzzer's targets as ordinary tests: fewer inputs, the same claims.

`python -m tests.fuzz.run` plays them by coverage, and millions of them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .bodies import Bodies
from .clients import Client
from .events import Events
from .harness import Broken
from .relays import Relays
from .streams import Streams
from .strict import Malformed, request, response
from .worlds import Worlds

EXAMPLES = settings(max_examples=100, deadline=None)
INPUTS = st.binary(max_size=160)
TARGETS = {
    "client": Client,
    "body": Bodies,
    "event": Events,
    "stream": Streams,
    "world": Worlds,
    "relay": Relays,
}
COUNTS = {"client": 5000, "body": 5000, "event": 5000, "stream": 2000, "world": 400, "relay": 300}


@pytest.mark.parametrize("name", TARGETS)
def test_random_decisions(name: str) -> None:
    run, draw = TARGETS[name](), random.Random(7)
    for _ in range(COUNTS[name]):
        run(draw.randbytes(draw.choice((20, 60, 200))))


@given(INPUTS)
@EXAMPLES
def test_a_client_is_read_as_h11_reads_it(data: bytes) -> None:
    Client()(data)


@given(INPUTS)
@EXAMPLES
def test_a_body_is_read_as_json_loads_reads_it(data: bytes) -> None:
    Bodies()(data)


@given(INPUTS)
@EXAMPLES
def test_an_event_of_any_shape_is_read_or_unsafe(data: bytes) -> None:
    Events()(data)


@given(INPUTS)
@EXAMPLES
def test_a_stream_passes_as_a_naive_reader_passes_it(data: bytes) -> None:
    Streams()(data)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


@pytest.fixture(scope="module")
def relays() -> Relays:
    return Relays()


@given(data=INPUTS)
@EXAMPLES
def test_nothing_leaks_whoever_does_what(worlds: Worlds, data: bytes) -> None:
    worlds(data)


@given(data=INPUTS)
@EXAMPLES
def test_an_answer_is_whole_whenever_engines_die(relays: Relays, data: bytes) -> None:
    relays(data)


OK = b"HTTP/1.1 200 OK\r\n"
MALFORMED = {
    "no reason's space": b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
    "two lengths": OK + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "length and coding": OK + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an open end unannounced": OK + b"\r\n",
    "a chunk too long": OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "a size that is none": OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\nab\r\n0\r\n\r\n",
    "a folded header": OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a bare line feed": OK + b"A: b\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_the_strict_reader_is_strict(case: str) -> None:
    with pytest.raises(Malformed):
        response(MALFORMED[case], 0, closed=True)


def test_the_strict_reader_reads() -> None:
    found = response(
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\nHTTP", 0, True
    )
    assert found is not None
    assert (found.body, found.complete, found.status) == (b"a", True, 200)
    cut = response(OK + b"Content-Length: 5\r\n\r\nabc", 0, True)
    assert cut is not None
    assert not cut.complete
    head = b"POST /a HTTP/1.1\r\nhost: e\r\nx-request-id: 1\r\n"
    assert request(head + b"content-length: 1\r\n\r\na").body == b"a"
    for rest in (b"\r\n", b"content-length: 2\r\n\r\na", b"te: x\r\ncontent-length: 0\r\n\r\n"):
        with pytest.raises(Malformed):
            request(head + rest)


def faults(name: str, spoil: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of some inputs are found out when something is spoiled."""
    spoil(monkeypatch)
    run, draw, found = TARGETS[name](), random.Random(3), 0
    for _ in range(300):
        try:
            run(draw.randbytes(80))
        except (Broken, Malformed):
            found += 1
            run = TARGETS[name]()
    return found


SPOILED = {
    "a header of one hop goes on": ("world", "infctl.router.wire._REQUEST_DROPPED", frozenset()),
    "engines' usage passes": ("stream", "infctl.router.tap._NO_CHOICES", b"nothing"),
    "bodies are not read": ("client", "infctl.router.wire.Head.get", lambda self, name: None),
    "owned fields pass": ("body", "infctl.router.intake.Intake._strip", lambda self, body: body),
    "text is forgotten": ("relay", "infctl.router.continuation._text", lambda choice: "x"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_is_spoiled_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that finds nothing in a broken router would prove nothing."""
    name, where, what = SPOILED[case]
    assert faults(name, lambda patch: patch.setattr(where, what), monkeypatch)
