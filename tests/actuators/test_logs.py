"""A rank's log."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from infctl.actuators.logs import LINE_CHARACTERS, LINES_KEPT, RankLog


def test_last_lines_survive_any_chunking(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "log", 10_000)
    for chunk in (b"one\ntw", b"o\n\nthr", b"ee"):
        log.write(chunk)
    assert log.last_lines() == ["one", "two", "three"]
    log.forget()
    assert log.last_lines() == []
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n\nthree"
    log.close()


@given(st.lists(st.binary(max_size=80), max_size=60))
def test_size_and_memory_are_bounded(chunks: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = RankLog(Path(folder) / "log", 200)
        for chunk in chunks:
            log.write(chunk)
            assert log.path.stat().st_size <= 200
        assert len(log.last_lines()) <= LINES_KEPT
        assert all(len(line) <= LINE_CHARACTERS for line in log.last_lines())
        log.close()


def test_a_log_is_continued(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        log = RankLog(tmp_path / "log", 10_000)
        log.write(text)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
