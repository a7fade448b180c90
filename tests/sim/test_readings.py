"""What is read off samples, on samples made by hand."""

from __future__ import annotations

import pytest

from infctl import compose
from infctl.replica import Replica, ReplicaOptions, ReplicaRequest
from infctl.runs.spec import Sample
from infctl.sim import readings


def sample(tokens: int, ttft_ms: float, tpot_ms: float = 10.0, sent_s: float = 0.0) -> Sample:
    return Sample(
        sent_s=sent_s,
        late_ms=0.0,
        input_tokens=tokens,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        e2e_ms=ttft_ms + 100 * tpot_ms,
        output_tokens=101,
    )


@pytest.mark.parametrize("tokens", [1, 900, 8192, 8193, 40_000])
def test_an_unloaded_ttft_is_what_an_idle_engine_takes(tokens: int) -> None:
    timing = compose.timing("deepseek-v3-8xh200-tp8")
    engine = Replica(timing, ReplicaOptions(max_num_batched_tokens=8192))
    engine.submit(ReplicaRequest("a", tokens, 1), 0.0)
    (first, _) = engine.advance(1e6)
    assert first.at_ms == pytest.approx(readings.unloaded_ttft_ms(timing, tokens, 8192))


def test_a_long_prompt_may_take_its_time() -> None:
    unloaded = {1000: 250.0, 60_000: 4000.0}
    samples = [sample(1000, 1999.0), sample(1000, 2001.0), sample(60_000, 11_900.0)]
    assert readings.good_share(samples, readings.Bounds(), unloaded) == pytest.approx(2 / 3)
    plain = readings.Bounds(times=0.0)
    assert readings.good_share(samples, plain, unloaded) == pytest.approx(1 / 3)


def test_errors_and_slow_tokens_are_not_good() -> None:
    failed = sample(1000, 100.0)
    failed.error = "HTTP 429"
    samples = [failed, sample(1000, 100.0, tpot_ms=51.0), sample(1000, 100.0)]
    share = readings.good_share(samples, readings.Bounds(), {1000: 250.0})
    assert share == pytest.approx(1 / 3)


def test_starving_a_class_shows() -> None:
    samples = [sample(1000 * (i + 1), 100.0) for i in range(40)]
    lengths = readings.classes(samples)
    assert lengths["long"] == (30_000, float("inf"))
    base = readings.ttft_p90_by_class(samples, lengths)
    slow = [sample(s.input_tokens, 300.0 if s.input_tokens > 30_000 else 90.0) for s in samples]
    mine = readings.ttft_p90_by_class(slow, lengths)
    assert readings.starved(mine, base) == ["q4", "long"]
    assert readings.starved(base, base) == []
    within = {name: p90 * 1.019 for name, p90 in base.items()}
    assert readings.starved(within, base) == []


def test_what_is_out_by_the_last_arrival() -> None:
    early, late = sample(10, 0.0, tpot_ms=10.0), sample(10, 500.0, tpot_ms=10.0, sent_s=0.5)
    # At 0.5 s the first has 50 of 100 ms-steps behind it, the second nothing.
    assert readings.done_share([early, late]) == pytest.approx(0.25, abs=0.01)
    assert readings.is_saturated([early, late])
    assert not readings.is_saturated([early, sample(10, 0.0, sent_s=60.0)][:1] * 99 + [
        sample(10, 0.0, sent_s=60.0)
    ])  # fmt: skip
