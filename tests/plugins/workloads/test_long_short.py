import msgspec
import pytest

from infctl.workload.prefix import hit_ceiling
from infctl_plugins.workloads.long_short import LongShort


def test_most_requests_are_short_and_most_tokens_long() -> None:
    requests = list(LongShort().requests(0, 4000))
    inputs = [r.input_tokens for r in requests]
    assert sum(n <= 512 for n in inputs) / len(inputs) == pytest.approx(0.757, abs=0.01)
    assert sum(n for n in inputs if n > 8192) / sum(inputs) == pytest.approx(0.61, abs=0.03)
    assert hit_ceiling(requests) == 0.0
    assert len(inputs) / requests[-1].at_s == pytest.approx(4.0, rel=0.1)


def test_shares_are_parameters() -> None:
    only_long = list(LongShort(short_share=0.0, long_share=1.0).requests(0, 50))
    assert min(r.input_tokens for r in only_long) > 8192
    only_short = list(LongShort(short_share=1.0, long_share=0.0).requests(0, 50))
    assert max(r.input_tokens for r in only_short) <= 512
    with pytest.raises(msgspec.ValidationError, match="exceed 1"):
        msgspec.convert({"short_share": 0.9, "long_share": 0.2}, LongShort)
