"""Answers on their way out, to readers quick and slow."""

from __future__ import annotations

import json

from infctl.emulator.prompt import from_text
from infctl.emulator.stream import Answer
from infctl.emulator.text import Speech
from infctl.emulator.wire import Shape

SPEECH = Speech(4)


class Reader:
    """A reply that records; `room` writes may be made before it pauses."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.paused = False
        self.room = room
        self.data: list[bytes] = []
        self.ended = False

    def send(self, status: int, body: bytes) -> None:
        self.data.append(body)
        self.ended = True

    def open(self) -> None:
        self.data.append(b"")

    def write(self, data: bytes) -> None:
        self.data.append(data)
        self.room -= 1
        self.paused = self.room <= 0

    def end(self, data: bytes) -> None:
        self.data.append(data)
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def texts(self) -> list[str]:
        """The text of every event."""
        events = b"".join(self.data).split(b"\n\n")
        bodies = [json.loads(e.removeprefix(b"data: ")) for e in events if b"{" in e]
        return [b["choices"][0]["text"] for b in bodies]


def answer(reader: Reader, tokens: int, interval: int = 1) -> Answer:
    """A streamed answer of that many tokens."""
    shape = Shape(dialect="vllm", chat=False, id="i", created=1, model="m")
    made = Answer(shape, from_text("abcdefgh", 4), tokens, "length", reader, SPEECH)
    made.stream(include_usage=False, interval=interval)
    return made


def test_the_first_token_goes_out_at_once_and_the_last_with_the_end() -> None:
    reader = Reader()
    made = answer(reader, 5)
    made.begin()
    assert len(reader.texts()) == 1
    assert made.flush(3) == 2
    assert made.flush(3) == 0
    assert made.flush(5) == 1
    assert made.finish()
    assert "".join(reader.texts()).encode() == b"".join(SPEECH.slice(2, 7))
    assert len(reader.texts()) == 5


def test_one_token_is_one_event() -> None:
    reader = Reader()
    made = answer(reader, 1)
    made.begin()
    assert made.finish()
    assert len(reader.texts()) == 1


def test_intervals() -> None:
    reader = Reader()
    made = answer(reader, 11, interval=3)
    made.begin()
    for done in range(2, 12):
        made.flush(done)
    assert made.finish()
    assert [len(t) // 4 for t in reader.texts()] == [1, 3, 3, 3, 1]


def test_a_slow_reader_is_written_no_more_than_it_takes() -> None:
    reader = Reader(room=2)
    made = answer(reader, 20_000)
    made.begin()
    made.flush(6000)
    assert reader.paused
    assert made.flush(9000) == 0
    assert not made.finish()
    sent = made.sent
    reader.paused, reader.room = False, 1
    assert not made.resume()
    assert made.sent == sent + 4096
    reader.paused, reader.room = False, 100
    assert made.resume()
    assert "".join(reader.texts()).encode() == b"".join(SPEECH.slice(2, 20_002))


def test_a_reader_that_pauses_before_the_first_token() -> None:
    reader = Reader()
    made = answer(reader, 3)
    reader.paused = True
    made.begin()
    assert not made.finish()
    reader.paused = False
    assert made.resume()
    assert len(reader.texts()) == 3


def test_an_aborted_answer_ends_where_it_is() -> None:
    reader = Reader()
    made = answer(reader, 50)
    made.begin()
    made.flush(10)
    made.cut_short(12)
    assert reader.ended
    assert len(reader.texts()) == 12
    assert b'"finish_reason":"abort"' in reader.data[-1]
