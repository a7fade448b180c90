import msgspec
import pytest

from infctl.runs.spec import RunSpec
from infctl.runs.summary import hit_rate, self_check, summarise
from infctl.slo import Slo

SPEC = RunSpec(url="http://h", speed=10.0, slo=Slo(ttft_ms=150, tpot_ms=20), policy="p")


def test_figures_of_a_run(make) -> None:
    found = summarise(make.measured([make.sample(i) for i in range(10)]), SPEC)
    assert (found.requests, found.errors) == (10, 0)
    assert found.ttft_ms.p50 == 104.5
    assert found.duration_s == 10.0, "from the first send to the last answer"
    assert found.output_tokens_per_s == 50.0
    assert found.goodput == 1.0
    assert found.prefix_hit_rate == 0.25
    assert [(e.endpoint, e.requests) for e in found.per_endpoint] == [("e0", 5), ("e1", 5)]


def test_failed_requests_count_but_have_no_times(make) -> None:
    found = summarise(
        make.measured(
            [make.sample(0), make.failed(1), make.failed(2), make.sample(3, ttft_ms=999.0)]
        ),
        SPEC,
    )
    assert (found.requests, found.errors, found.errors_by_kind) == (4, 2, {"HTTP 500": 2})
    assert found.ttft_ms.p50 == pytest.approx(549.5)
    assert found.good_share == 0.25


def test_nothing_but_failures(make) -> None:
    found = summarise(make.measured([make.failed(0)]), SPEC)
    assert found.ttft_ms.p50 is None
    assert found.prefix_hit_rate is None
    assert found.curves.ttft_cdf == []
    assert not found.client.passed


def test_engines_without_cached_tokens_have_no_hit_rate(make) -> None:
    assert hit_rate([make.sample(0, cached_tokens=None)]) is None
    assert hit_rate([make.sample(0, cached_tokens=None), make.sample(1)]) == 0.25


def test_load_adds_up_to_request_seconds(make) -> None:
    found = summarise(make.measured([make.sample(i) for i in range(10)]), SPEC)
    for endpoint in found.per_endpoint:
        points = endpoint.running
        width_s = points[1][0] - points[0][0]
        assert sum(value for _, value in points) * width_s == pytest.approx(5.0, rel=0.05)


def test_output_rate_follows_the_ticks(make) -> None:
    rates = summarise(make.measured([make.sample(i) for i in range(10)]), SPEC).curves.output_rate
    assert all(rate == pytest.approx(50, rel=0.01) for _, rate in rates)


def test_curves_are_bounded(make) -> None:
    many = [make.sample(i, endpoint=f"e{i % 3}") for i in range(5000)]
    curves = summarise(make.measured(many), SPEC).curves
    assert len(curves.ttft_cdf) <= 240
    assert curves.ttft_cdf[-1][1] == 1.0
    shares = [share for _, share in curves.ttft_cdf]
    assert shares == sorted(shares)


def test_hit_rate_by_length(make) -> None:
    short = make.sample(0, prompt_tokens=1024, cached_tokens=512)
    long = make.sample(1, prompt_tokens=90_000, cached_tokens=0)
    buckets = summarise(make.measured([short, long]), SPEC).curves.by_length
    assert [(b.from_tokens, b.to_tokens, b.prefix_hit_rate) for b in buckets] == [
        (0, 1024, 0.5),
        (65_536, None, 0.0),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lag_ms_p99": 2.0}, "event loop lag: p99 20 ms"),
        ({"cpu_share": 0.95}, "CPU-bound"),
        ({"negative_ttft": 3}, "3 first tokens"),
    ],
)
def test_the_self_check_fails(make, changes: dict[str, object], reason: str) -> None:
    good = self_check(make.measured([make.sample(i) for i in range(9)]), SPEC)
    assert (good.passed, good.reasons, good.lag_ms_max) == (True, [], 10.4)
    found = self_check(make.measured([make.sample(i) for i in range(9)], **changes), SPEC)
    assert not found.passed
    assert reason in found.reasons[0]


def test_late_sends_fail_it_too(make) -> None:
    found = self_check(make.measured([make.sample(i, late_ms=40.0) for i in range(9)]), SPEC)
    assert "late sends: p99 40 ms" in found.reasons[0]


def test_endpoints_without_a_request_are_part_of_the_fleet(make) -> None:
    spec = msgspec.structs.replace(SPEC, endpoints=("e0", "e1", "e2"))
    found = summarise(make.measured([make.sample(i) for i in range(10)]), spec)
    assert [(e.endpoint, e.requests, e.output_tokens) for e in found.per_endpoint][2] == (
        *("e2", 0, 0),
    )
    assert {value for _, value in found.per_endpoint[2].running} == {0.0}
