"""What the fuzzers found, each with the smallest input that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infctl.router.continuation import Sofar, Unsafe, decode, decode_request, ending
from infctl.router.framing import LAST_CHUNK, chunk
from infctl.router.intake import Intake
from infctl.router.tap import Tap
from infctl.router.wire import BadRequest, ResponseHead, parse_head, response_head

from .harness import Upstream, World, feed, running
from .strict import response

LINE = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = chunk(b'data: {"choices":[{"text":"a"}]}\n\n')


# --- clients ------------------------------------------------------------------------------------


def test_close_wins_over_keep_alive_in_http_1_0() -> None:
    old = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n"
    assert parse_head(old + b"\r\n").keep_alive
    assert not parse_head(old + b"Connection: close\r\n\r\n").keep_alive


@pytest.mark.parametrize("line", [b"GET  / HTTP/1.1", b"\nGET / HTTP/1.1", b"\r\nGET / HTTP/1.1"])
def test_a_request_line_is_nothing_but_one(line: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(line + b"\r\nHost: r\r\n\r\n")


def test_the_first_byte_behind_a_chunked_request_is_not_lost() -> None:
    """It makes the connection end: it cannot be read any more, and what follows it makes no
    sense without it."""
    head = parse_head(LINE + b"Transfer-Encoding: chunked\r\n\r\n")
    head.feed(b"1\r\na\r\n0\r\n\r\nP")
    assert (bytes(head.body), head.keep_alive) == (b"a", False)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_empty_lines_ahead_are_skipped_however_they_are_cut(size: int) -> None:
    world = World()
    with running(world.loop):
        connection, wire = world.client()
        data = b"\r\n" * 3 + b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n"
        for at in range(0, len(data), size):
            feed(connection, wire, data[at : at + size])
        world.settle()
        assert wire.out.startswith(b"HTTP/1.1 200")
        world.end()


# --- bodies -------------------------------------------------------------------------------------

INTAKE = Intake(("rid",), (), 1, ("interactive",))


def read(body: bytes) -> bytes:
    head = parse_head(LINE + b"\r\n")
    return bytes(INTAKE.read(head, body, lambda: "m")[1])


@pytest.mark.parametrize(
    "value", [b"1e400", b"18446744073709551616", b"1.50", b"[" * 900 + b"]" * 900]
)
def test_what_stays_beside_an_owned_field_stays_byte_by_byte(value: bytes) -> None:
    assert read(b'{"rid":1,"x":' + value + b"}") == b'{"x":' + value + b"}"


@pytest.mark.parametrize("body", [b'{"rid":1,"\xff":1}', b'{"rid":1,"\\ud800":1}'])
def test_a_key_that_is_no_text_is_a_400_beside_an_owned_field(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream_options":"x"}', b'{"stop":5}', b'{"stop":[5]}', b'{"response_format":"json"}',
        b'{"max_tokens":"many"}', b'{"messages":{}}', b'{"x":"\xff"}', b'{"x":1e400}', b"[]",
    ],
)  # fmt: skip
def test_a_request_of_an_odd_shape_is_not_continued(body: bytes) -> None:
    with pytest.raises(Unsafe):
        decode_request(body)


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":5}', b'{"choices":[5]}', b'{"choices":[{"delta":"x"}]}', b'{"usage":"x"}',
        b'{"choices":[{"text":5}]}', b'{"choices":[{"token_ids":"ab"}]}', b'{"x":"\xff"}', b"5",
        b'{"usage":{"prompt_tokens":"many"}}',
    ],
)  # fmt: skip
def test_an_event_of_an_odd_shape_is_not_continued(event: bytes) -> None:
    with pytest.raises(Unsafe):
        decode(event)


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(LAST_CHUNK)))
def test_a_last_chunk_in_two_reads_is_passed_once_and_whole(cut: int) -> None:
    tap = Tap()
    assert tap.feed(EVENT) == EVENT
    assert tap.feed(LAST_CHUNK[:cut]) == b""
    assert tap.feed(LAST_CHUNK[cut:]) == LAST_CHUNK


TOLD = b'data: {"choices":[{"text":"a","token_ids":[1],"prompt_token_ids":[2]}]}\n\n'


def cut_at(payload: bytes, mark: bytes) -> bytes:
    """Two chunks, between them the middle of a mark."""
    at = payload.index(mark) + len(mark) // 2
    return chunk(payload[:at]) + chunk(payload[at:])


def test_framing_within_an_event_hides_no_token_ids() -> None:
    tap = Tap(ids=True)
    assert b"ids" not in tap.feed(cut_at(TOLD, b'token_ids":['))


def test_framing_within_an_event_hides_no_usage_and_no_failure() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    tap = Tap(usage=True)
    assert tap.feed(EVENT + cut_at(usage, b'"choices":[]')) == EVENT
    error = b'data: {"error":{"code":500}}\n\n'
    assert tap.feed(EVENT + cut_at(error, b'"code":5')) == EVENT
    assert tap.failure


def test_a_comment_ahead_does_not_say_that_there_are_no_token_ids() -> None:
    tap = Tap(ids=True)
    later = TOLD.replace(b',"prompt_token_ids":[2]', b"")
    out = tap.feed(chunk(b": ping\n\n")) + tap.feed(chunk(TOLD)) + tap.feed(chunk(later))
    assert out.count(b"data:") == 2
    assert b"ids" not in out


def test_choices_that_are_no_list_are_no_exception() -> None:
    tap = Tap()
    odd = chunk(b'data: {"choices":5,"x":"","y":"abort","z":{"a":"abort"}}\n\n')
    assert tap.feed(odd) == odd


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"chunked\r\nTransfer-Encoding: x"])
def test_an_engines_coding_is_chunked_or_a_failure(coding: bytes) -> None:
    with pytest.raises(ValueError):
        ResponseHead().feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n")


@pytest.mark.parametrize("cut", range(1, len(LAST_CHUNK) + 1))
@pytest.mark.parametrize("trailer", [b"", b"X-T: 1\r\n"])
def test_empty_lines_behind_an_answer_end_here(cut: int, trailer: bytes) -> None:
    head = ResponseHead()
    head.feed(STREAM)
    last = EVENT + b"0\r\n" + trailer + b"\r\n"
    at = len(last) - cut
    assert head.follow(last[:at]) + head.follow(last[at:] + b"\r\n\n") == last
    assert head.done


BETWEEN = [
    (EVENT, True),
    (EVENT[:-1], False),
    (EVENT[:-2], False),
    (EVENT + b"3\r\n", False),
    (EVENT + b"0\r\n", False),
]


@pytest.mark.parametrize(("said", "may"), BETWEEN)
def test_whether_a_body_may_end_is_the_parsers_word(said: bytes, may: bool) -> None:
    head = ResponseHead()
    head.feed(STREAM)
    head.follow(said)
    assert head.may_end() == may


def test_an_ending_says_nothing_twice() -> None:
    sofar = Sofar()
    sofar.take(b'data: {"choices":[{"text":"a","token_ids":[1],"prompt_token_ids":[2]}]}\n\n')
    assert b"usage" in ending(sofar, chat=False, wants_usage=True)
    sofar.take(b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n')
    assert b"usage" not in ending(sofar, chat=False, wants_usage=True)
    sofar.take(b"data: [DONE]\n\n")
    assert ending(sofar, chat=False, wants_usage=True) == b""


def test_what_an_engines_connection_header_names_ends_here() -> None:
    head = ResponseHead()
    head.feed(
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nConnection: x-a\r\nX-B: 2\r\nContent-Length: 0\r\n\r\n"
    )
    out = response_head(head, b"id", b"e", b"content-length: 0\r\n", False)
    assert b"x-b" in out
    assert b"x-a" not in out


# --- the whole router ---------------------------------------------------------------------------


class Play:
    """One client, and engines that do as they are told, one after the other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection, self.wire = world.client()

    def ask(self, version: bytes = b"1.1", path: bytes = b"/v1/completions", **more: Any) -> None:
        """Send a request."""
        body = json.dumps({"model": "m", "prompt": "p", "stream": True, "max_tokens": 9} | more)
        line = b"POST %s HTTP/%s\r\nHost: r\r\nContent-Length: %d\r\n\r\n"
        feed(self.connection, self.wire, line % (path, version, len(body)) + body.encode())
        self.world.settle()

    def engine(self) -> Upstream:
        """The engine that works on it now."""
        return next(u for u in self.world.upstreams if u.link.receiver is not None)

    def say(self, data: bytes) -> None:
        """Let it say so."""
        self.engine().say(data)
        self.world.settle()
        self._count()

    def die(self) -> None:
        """Let it die."""
        self.engine().end(OSError("reset"))
        self.world.settle()
        self._count()

    def _count(self) -> None:
        """Tell the router how many tokens a text has, where it asks."""
        for upstream in self.world.upstreams:
            if b"/tokenize" in upstream.take():
                upstream.say(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"count":1}')
        self.world.settle()


@pytest.fixture
def play() -> Iterator[Play]:
    world = World()
    with running(world.loop):
        yield Play(world)
        world.end()


def test_a_retrys_answer_is_not_shaped_by_the_stream_before(play: Play) -> None:
    """The tap of a first leg that failed swallowed the answer of the second."""
    play.ask()
    play.say(STREAM + b"10\r\ndata: {")
    play.die()
    play.say(b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}")
    found = response(bytes(play.wire.out), 0, closed=False)
    assert found is not None
    assert (found.status, found.body, found.complete) == (400, b"{}", True)
    assert play.world.router.telemetry.kept_bytes == 0


def test_an_engine_that_goes_on_without_chunks_is_not_taken(play: Play) -> None:
    play.ask()
    play.say(STREAM + EVENT)
    play.die()
    play.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nuntil the end")
    play.say(STREAM + chunk(b'data: {"choices":[{"text":"b","finish_reason":"stop"}]}\n\n'))
    play.say(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
    found = response(bytes(play.wire.out), 0, closed=False)
    assert found is not None
    assert found.complete
    assert b"until" not in found.body
    assert found.body.endswith(b"data: [DONE]\n\n")


def test_a_slow_client_holds_up_the_engine_that_goes_on_too(play: Play) -> None:
    play.ask()
    play.say(STREAM + EVENT)
    play.connection.pause_writing()
    assert not play.engine().wire.reading
    play.die()
    assert not play.engine().wire.reading
    play.connection.resume_writing()
    assert play.engine().wire.reading


def test_a_chunk_in_the_middle_is_no_place_for_an_error_event(play: Play) -> None:
    """The client of an untapped stream stands where the engine stopped."""
    play.ask(path=b"/v1/responses")
    play.say(STREAM + b"40\r\ndata: x\n\n")
    play.die()
    found = response(bytes(play.wire.out), 0, closed=True)
    assert found is not None
    assert not found.complete
    assert b"error" not in found.body
    assert play.wire.aborted


def test_between_chunks_it_is(play: Play) -> None:
    play.ask(path=b"/v1/responses")
    play.say(STREAM + EVENT)
    play.die()
    found = response(bytes(play.wire.out), 0, closed=True)
    assert found is not None
    assert found.complete
    assert b"stream broken off" in found.body


def test_of_two_that_work_on_a_request_the_first_to_say_something_answers(play: Play) -> None:
    """Engines send their head at once; the rival's answer was written behind the other's."""
    play.ask()
    exchange: Any = play.connection.exchange
    play.say(STREAM)
    exchange._slow(exchange.leg)
    play.world.settle()
    assert exchange.rival is not None
    play.say(EVENT)
    assert exchange.rival is None
    exchange._slow(exchange.leg)
    assert exchange.rival is None
    play.say(LAST_CHUNK)
    found = response(bytes(play.wire.out), 0, closed=False)
    assert found is not None
    assert found.complete
    assert found.end == len(play.wire.out)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na"])
def test_a_question_without_an_answer_leaves_no_connection_behind(said: bytes) -> None:
    world = World(1)
    with running(world.loop):
        pool = next(iter(world.router.pools.values()))
        asked = world.loop.create_task(pool.get("/health", 2.0))
        world.loop.run()
        world.upstreams[0].say(said)
        world.loop.advance(3.0)
        assert isinstance(asked.exception(), TimeoutError)
        assert world.upstreams[0].wire.lost
        world.end()


def test_a_304_with_a_coding_is_an_answer_for_http_1_0_too(play: Play) -> None:
    play.ask(version=b"1.0")
    play.say(b"HTTP/1.1 304 Not\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert play.wire.out.startswith(b"HTTP/1.1 304")
    assert play.wire.closing


def test_an_engine_that_dies_behind_its_last_event_is_not_heard_twice(play: Play) -> None:
    play.ask()
    play.say(STREAM + chunk(b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n'))
    play.say(chunk(b"data: [DONE]\n\n") + b"0\r\n")
    play.die()
    found = response(bytes(play.wire.out), 0, closed=False)
    assert found is not None
    assert found.complete
    assert found.end == len(play.wire.out)
    assert found.body.count(b"[DONE]") == 1
