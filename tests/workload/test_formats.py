import msgspec
import pytest

from infctl.workload.formats import azure_row, mooncake_row, own_row
from infctl.workload.model import Segment


def test_mooncake_blocks_become_segments_with_a_partial_last() -> None:
    row = mooncake_row(
        b'{"timestamp": 1500, "input_length": 1100, "output_length": 9, "hash_ids": [0, 7, 8]}', 1
    )
    assert row.at_s == 1.5
    assert row.prompt == (Segment(0, 512), Segment(7, 512), Segment(8, 76))
    assert row.output_tokens == 9


def test_a_whole_last_block_stays_whole() -> None:
    row = mooncake_row(
        b'{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [3]}', 1
    )
    assert row.prompt == (Segment(3, 512),)


def test_mooncake_without_hash_ids_shares_nothing() -> None:
    line = b'{"timestamp": 0, "input_length": 600, "output_length": 1}'
    assert mooncake_row(line, 1).prompt[0].id != mooncake_row(line, 2).prompt[0].id


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"timestamp":0,"input_length":1100,"output_length":1,"hash_ids":[1]}', "3 blocks"),
        (b'{"timestamp":0,"input_length":-5,"output_length":1}', "input_length"),
        (b'{"timestamp":-1,"input_length":5,"output_length":1}', "timestamp"),
        (b'{"timestamp":0,"input_length":5,"output_length":0}', "output_length"),
        (b'{"timestamp":0,"input_length":99999999999,"output_length":1}', "input_length"),
        (b'{"timestamp":0,"output_length":1}', "input_length"),
        (b'{"timestamp":0,', "truncated"),
    ],
)
def test_broken_mooncake_lines(line: bytes, says: str) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError), match=says):
        mooncake_row(line, 1)


def test_azure_lines() -> None:
    first = azure_row(b"2023-11-16 18:15:46.6805900,374,44\r\n", 2)
    second = azure_row(b"2023-11-16 18:15:50.9951690,396,109", 3)
    assert second.at_s - first.at_s == pytest.approx(4.314579, abs=1e-5)
    assert (first.prompt[0].tokens, first.output_tokens) == (374, 44)
    assert first.prompt[0].id != second.prompt[0].id


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"2023-11-16 18:15:46,374", "2 fields"),
        (b"yesterday,1,1", "'yesterday' is not a time"),
        (b"2023-11-16,x,1", "'x' tokens"),
        (b"2023-11-16,0,1", "'0' tokens; expected 1 to 10,000,000"),
        (b"2023-11-16,-4,1", "'-4' tokens"),
        (b"2023-11-16,,1", "'' tokens"),
        (b"2023-11-16,4.0,1", "'4.0' tokens"),
        (b"2023-11-16,1_0,1", "'1_0' tokens"),
        (b"2023-11-16,1," + b"9" * 5000, "'9{40}' tokens"),
    ],
)
def test_broken_azure_lines(line: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        azure_row(line, 2)


def test_own_lines() -> None:
    row = own_row(b'{"at_s":2,"output_tokens":3,"segments":[[5,10],[6,20]],"session":"a"}', 1)
    assert (row.at_s, row.prompt, row.session) == (2.0, (Segment(5, 10), Segment(6, 20)), "a")
    assert own_row(b'{"at_s":2,"output_tokens":3,"input_tokens":7}', 1).prompt[0].tokens == 7


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"at_s":0,"output_tokens":1}', "needs input_tokens"),
        (b'{"at_s":0,"output_tokens":1,"input_tokens":5,"segments":[[1,4]]}', "add up to 4"),
        (b'{"at_s":0,"output_tokens":1,"input_tokens":5,"sesion":"a"}', "sesion"),
        (b'{"at_s":0,"output_tokens":1,"segments":[[-1,4]]}', "segments"),
        (b'{"at_s":1e99,"output_tokens":1,"input_tokens":5}', "at_s"),
        (b'{"at_s":NaN,"output_tokens":1,"input_tokens":5}', "malformed"),
        (b'{"at_s":-1,"output_tokens":1,"input_tokens":5}', "at_s"),
        (b'{"at_s":0,"output_tokens":1,"segments":[[1,0]]}', "segments"),
        (b'{"at_s":0,"output_tokens":1,"segments":[[1,9000000],[2,9000000]]}', "18,000,000 tokens"),
    ],
)
def test_broken_own_lines(line: bytes, says: str) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError), match=says):
        own_row(line, 1)
