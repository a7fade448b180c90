import contextlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.errors import InputError
from infctl.workload.model import Workload
from infctl.workload.prefix import hit_ceiling
from infctl.workload.traces import Trace, open_trace, read_trace

DATA = Path(os.environ.get("INFCTL_DATA") or Path(__file__).parents[2] / "../shared/data")
LINE = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [0, %d]}\n'


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def read(text: str | bytes) -> Trace:
    return read_trace(io.BytesIO(text.encode() if isinstance(text, str) else text), "t.jsonl")


def test_times_start_at_zero_and_limit_cuts_rows() -> None:
    trace = read(LINE % (5000, 1) + LINE % (5500, 2) + "\n" + LINE % (9000, 3))
    assert isinstance(trace, Workload)
    assert [r.at_s for r in trace.requests(0)] == [0.0, 0.5, 4.0]
    assert [r.prompt[1].id for r in trace.requests(0, 2)] == [1, 2]
    assert trace.notes == ()


def test_rounded_timestamps_are_spread_by_the_seed() -> None:
    trace = read("".join(LINE % (3000 * (i // 5), i) for i in range(50)))
    assert trace.quantum_s == 3.0
    assert "3 s" in trace.notes[0]
    requests = list(trace.requests(1))
    times = [r.at_s for r in requests]
    assert times == sorted(times)
    assert len(set(times)) == 50
    for request in requests:
        group_s = 3.0 * (request.prompt[1].id // 5)
        assert group_s <= request.at_s < group_s + 3
    assert requests == list(trace.requests(1))
    assert requests != list(trace.requests(2))


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("", "t.jsonl", "empty"),
        ("  \n\n", "t.jsonl", "empty"),
        (b"\x7fELF\0\0\1", "t.jsonl", "binary"),
        (b"\x1f\x8b\x08abc", "t.jsonl", "compressed"),
        ("hello\n", "t.jsonl:1", "not a trace"),
        ("[1]\n", "t.jsonl:1", "not a trace"),
        (LINE % (0, 1) + "{oops\n", "t.jsonl:2", "malformed"),
        (LINE % (0, 1) + "\n" + LINE.replace("600", "-6") % (1, 1), "t.jsonl:3", "input_length"),
        (LINE % (9000, 1) + LINE % (8000, 1), "t.jsonl:2", "1 s earlier"),
        (b'{"at_s": 0, "session": "\xff\xfe"}\n', "t.jsonl:1", "not text"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.jsonl", "no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,5\n", "t.jsonl:2", "2 fields"),
        ("1" * 5 + '"at_s"', "t.jsonl:1", "not a trace"),
        (LINE % (0, 1) + LINE % (1, 1) + "{oops\n", "t.jsonl:3", r"JSON is malformed"),
        (LINE % (0, 1) + (LINE % (1, 1))[:40], "t.jsonl:2", "truncated"),
        (LINE % (0, 1) + (LINE % (1, 1)).strip() * 2, "t.jsonl:2", "trailing"),
        (LINE % (0, 1) + LINE.replace("%d,", "NaN,", 1) % 1, "t.jsonl:2", "malformed"),
        (LINE % (0, 1) + LINE.replace("%d,", "1e400,", 1) % 1, "t.jsonl:2", "out of range"),
        (LINE % (0, 1) + LINE.replace("600", "6.5") % (1, 1), "t.jsonl:2", "input_length"),
        (LINE % (0, 1) + LINE.replace("600", "true") % (1, 1), "t.jsonl:2", "input_length"),
        (LINE % (0, 1) + LINE % (1, -1), "t.jsonl:2", "hash_ids"),
        (LINE % (0, 1) + LINE % (1, 1 << 70), "t.jsonl:2", "hash_ids"),
        (LINE % (0, 1) + LINE.replace("5", "10000001") % (1, 1), "t.jsonl:2", "output_length"),
        (LINE % (1_700_000_000_000, 1), "t.jsonl:1", "timestamp"),
        (
            LINE % (0, 1) + '{"at_s": 1, "input_tokens": 5, "output_tokens": 1}',
            "t.jsonl:2",
            "field",
        ),
        ("TIMESTAMP,GeneratedTokens,ContextTokens\n2023-11-16,5,6\n", "t.jsonl:1", "not a trace"),
        (AZURE + "2023-11-16,5,6\n2023-11-15,5,6\n", "t.jsonl:3", "86400 s earlier"),
        (AZURE + "2023-11-16,5,6\n" + AZURE, "t.jsonl:3", "is not a time"),
        (AZURE + "2022-11-16,5,6\n2023-11-18,5,6\n", "t.jsonl:3", "more than a year"),
    ],
)
def test_broken_traces_say_where_and_what(text: str | bytes, where: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(text)
    assert caught.value.where == where
    assert caught.value.hint
    assert caught.value.exit_code == 3


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_trace_or_an_input_error(data: bytes) -> None:
    for head in (b"", b'{"timestamp": 0, ', b'{"at_s": 0, ', b"TIMESTAMP,ContextTokens,Gener"):
        with contextlib.suppress(InputError):
            assert len(read(head + data)) > 0


def test_an_endless_line_is_refused() -> None:
    with pytest.raises(InputError, match="longer than"):
        read(LINE % (0, 1) + "{" + " " * (5 << 20))


def test_what_editors_add_does_no_harm() -> None:
    assert len(read("\ufeff" + LINE % (0, 1) + "\r\n" + (LINE % (1, 2)).replace("\n", "\r\n"))) == 2
    azure = "\ufeff\r\n" + AZURE.replace("\n", "\r\n") + "\r\n2023-11-16 01:00:00,5,6\r\n"
    assert [r.input_tokens for r in read(azure).requests(0)] == [5]


def test_a_pipe_is_told_to_be_saved_first() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, (LINE % (0, 1)).encode())
        os.close(writer)
        with pytest.raises(InputError, match="cannot be read") as caught:
            open_trace(f"/dev/fd/{reader}")
        assert "save" in (caught.value.hint or "")
    finally:
        os.close(reader)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such trace"):
        open_trace(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="folder"):
        open_trace(tmp_path)


def data(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set INFCTL_DATA")
    return path


def test_the_conversation_trace_has_its_published_figures() -> None:
    trace = open_trace(data("mooncake_conversation.jsonl"))
    requests = list(trace.requests(0))
    assert (trace.format, trace.quantum_s, len(requests)) == ("mooncake", 3.0, 12_031)
    assert sum(r.input_tokens for r in requests) / len(requests) == pytest.approx(12_035, abs=1)
    assert hit_ceiling(requests) == pytest.approx(0.3664, abs=0.0005)
    assert {r.prompt[0].id for r in requests} == {0}


def test_the_azure_trace_has_its_published_figures() -> None:
    trace = open_trace(data("azure2023_conv.csv"))
    requests = list(trace.requests(0))
    assert (trace.format, trace.quantum_s, len(requests)) == ("azure", 0.0, 19_366)
    assert sum(r.input_tokens for r in requests) / len(requests) == pytest.approx(1155, abs=1)
    assert hit_ceiling(requests) == 0.0
