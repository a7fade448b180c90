import msgspec
import pytest

from infctl.runs.spec import Failed, Message, Progress, RunSpec, Sample


def test_messages_round_trip_as_lines(make) -> None:
    measured = make.measured([Sample(0.5, 0.0, 10, ttft_ms=3.0)])
    for message in (Progress(1, 2, 0, 1), measured, Failed("InputError", "no", None, "hint")):
        line = msgspec.json.encode(message)
        assert b"\n" not in line
        assert msgspec.json.decode(line, type=Message) == message


BAD = ({"speed": 0}, {"rate_scale": -1}, {"limit": 0}, {"concurrency": 0}, {"api": "x"}, {"x": 1})


@pytest.mark.parametrize("bad", BAD)
def test_specs_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"url": "http://h"} | bad, RunSpec)
