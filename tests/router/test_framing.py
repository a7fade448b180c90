"""Framing is followed whatever the pieces the bytes come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infctl.router.framing import LAST_CHUNK, Events, Unchunk, chunk

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
EVENTS = st.lists(
    st.sampled_from([b"data: a\n\n", b'data: {"b":1}\n\n', b"id: 1\r\ndata: c\r\n\r\n"])
)
CUTS = st.lists(st.integers(1, 30), max_size=20)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes, cut as the sizes say, the rest in one piece."""
    found = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [*found, data]


@given(PAYLOADS, CUTS)
def test_chunks_are_undone_wherever_they_are_cut(payloads: list[bytes], sizes: list[int]) -> None:
    raw = b"".join(map(chunk, payloads)) + LAST_CHUNK
    undo = Unchunk()
    got = b"".join(undo.feed(piece) for piece in pieces(raw, sizes))
    assert got == b"".join(payloads)
    assert undo.done
    assert undo.between


@given(PAYLOADS.filter(bool), st.data())
def test_between_chunks_only_where_a_chunk_ended(
    payloads: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(map(chunk, payloads))
    ends = {0}
    for payload in payloads:
        ends.add(max(ends) + len(chunk(payload)))
    cut = data.draw(st.integers(0, len(raw)))
    undo = Unchunk()
    undo.feed(raw[:cut])
    assert undo.between == (cut in ends)


@given(EVENTS, CUTS)
def test_only_whole_events_come_out(events: list[bytes], sizes: list[int]) -> None:
    raw = b"".join(events)
    reader = Events()
    got = []
    for piece in pieces(raw, sizes):
        whole = reader.feed(piece)
        assert not whole or whole.endswith((b"\n\n", b"\r\n\r\n"))
        got.append(whole)
    assert b"".join(got) == raw
    assert reader.open == b""


def test_a_stream_without_an_end_of_event_is_not_held_for_ever() -> None:
    reader = Events()
    assert reader.feed(b"x" * (8 << 20)) == b""
    assert len(reader.feed(b"y")) == (8 << 20) + 1


def test_nothing_makes_no_chunk() -> None:
    assert chunk(b"") == b""
    assert chunk(b"ab") == b"2\r\nab\r\n"
