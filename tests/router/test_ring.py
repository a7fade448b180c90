"""News of prefixes: one writer, readers that may fall behind."""

from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from infctl.router.ring import _WORD, RECORD_MAX, RING_WORDS, Reader, Writer, words_of

HASH = st.integers(0, 2**64 - 1)
RECORDS = st.lists(
    st.tuples(st.integers(0, 16_383), st.lists(HASH, min_size=1, max_size=9), st.booleans())
)


def memory() -> mmap.mmap:
    return mmap.mmap(-1, words_of() * _WORD)


def publish(writer: Writer, slot: int, blocks: list[int], held: bool) -> None:
    writer.publish(slot, blocks, held)
    writer.flush()


def everything(reader: Reader) -> list[tuple[int, list[int], bool]]:
    found = []
    while news := list(reader.records()):
        found += news
    return found


@given(RECORDS, st.integers(0, 20))
def test_what_is_written_is_read_once(
    records: list[tuple[int, list[int], bool]], ahead: int
) -> None:
    shared = memory()
    writer = Writer(shared, 0)
    for _ in range(ahead):  # so that records wrap around the end of the ring
        publish(writer, 1, [7] * 3276, True)
    reader = Reader(shared, 0)
    for record in records:
        publish(writer, *record)
    assert everything(reader) == records
    assert everything(reader) == []
    assert reader.skipped == 0


def test_a_reader_that_fell_behind_goes_on_at_the_end() -> None:
    shared = memory()
    writer, reader = Writer(shared, 0), Reader(shared, 0)
    for _ in range(RING_WORDS // 100):
        publish(writer, 1, [5] * 199, True)
    assert everything(reader) == []
    assert reader.skipped > RING_WORDS
    publish(writer, 2, [6], False)
    assert everything(reader) == [(2, [6], False)]


def test_a_long_idle_reader_catches_up_in_parts() -> None:
    shared = memory()
    writer, reader = Writer(shared, 0), Reader(shared, 0)
    for number in range(300):
        publish(writer, number, [number] * 100, True)
    first = list(reader.records())
    assert 0 < len(first) < 300
    assert [record[0] for record in first + everything(reader)] == list(range(300))


def test_torn_records_are_skipped() -> None:
    shared = memory()
    writer, reader = Writer(shared, 0), Reader(shared, 0)
    publish(writer, 1, [5] * 10, True)
    words = memoryview(shared).cast("Q")
    words[2] = 1 << 30  # a count that no record has
    assert everything(reader) == []
    publish(writer, 1, [6], True)
    assert everything(reader) == [(1, [6], True)]
    words.release()


def test_news_gather_until_they_are_flushed() -> None:
    shared = memory()
    writer, reader = Writer(shared, 0), Reader(shared, 0)
    writer.publish(1, [5], True)
    writer.publish(2, [6, 7], False)
    assert everything(reader) == []
    writer.flush()
    assert everything(reader) == [(1, [5], True), (2, [6, 7], False)]
    for _ in range(RECORD_MAX // 10):
        writer.publish(1, [5] * 10, True)
    assert len(everything(reader)) > 300  # too much to wait


def test_a_prompt_beyond_all_bounds_is_not_told() -> None:
    shared = memory()
    writer, reader = Writer(shared, 0), Reader(shared, 0)
    publish(writer, 1, [5] * (RECORD_MAX + 1), True)
    assert everything(reader) == []
