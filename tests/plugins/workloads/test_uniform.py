from collections import Counter
from statistics import correlation, mean

import msgspec
import pytest

from infctl import compose
from infctl.plugin import Workload
from infctl.workload.prefix import hit_ceiling
from infctl_plugins.workloads.uniform import Uniform


def test_it_is_the_workload_named_random() -> None:
    made = compose.load("workload", "random")
    assert isinstance(made, Uniform)
    assert isinstance(made, Workload)


def test_lengths_are_uniform_between_eight_tenths_and_the_whole() -> None:
    requests = list(Uniform(input_tokens=1000, output_tokens=100).requests(0, 4000))
    for lengths, longest in (
        ([r.input_tokens for r in requests], 1000),
        ([r.output_tokens for r in requests], 100),
    ):
        assert (min(lengths), max(lengths)) == (longest * 0.8, longest)
        assert mean(lengths) == pytest.approx(0.9 * longest, rel=0.002)
        quarters = Counter((n - longest * 4 // 5) * 20 // longest for n in lengths)
        assert [quarters[q] for q in range(4)] == [pytest.approx(1000, rel=0.1)] * 4
    pairs = [(r.input_tokens, r.output_tokens) for r in requests]
    assert abs(correlation(*zip(*pairs, strict=True))) < 0.05  # drawn on their own


def test_prompts_share_nothing_and_arrive_at_the_rate() -> None:
    requests = list(Uniform(rate_rps=10.0).requests(3, 3000))
    assert hit_ceiling(requests) == 0.0
    assert requests[0].at_s == 0.0
    assert len(requests) / requests[-1].at_s == pytest.approx(10.0, rel=0.1)
    assert requests == list(Uniform(rate_rps=10.0).requests(3, 3000))
    assert requests[0] != next(iter(Uniform(rate_rps=10.0).requests(4, 1)))


def test_the_ends_of_the_spread() -> None:
    fixed = list(Uniform(input_tokens=7, output_tokens=3, spread=0.0).requests(0, 50))
    assert {(r.input_tokens, r.output_tokens) for r in fixed} == {(7, 3)}
    anything = list(Uniform(input_tokens=5, output_tokens=1, spread=1.0).requests(0, 500))
    assert {r.input_tokens for r in anything} == {1, 2, 3, 4, 5}
    assert {r.output_tokens for r in anything} == {1}


@pytest.mark.parametrize(
    "wrong",
    [{"spread": 1.1}, {"spread": -0.1}, {"input_tokens": 0}, {"rate_rps": 0}, {"unknown": 1}],
)
def test_bad_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        msgspec.convert(wrong, Uniform)
