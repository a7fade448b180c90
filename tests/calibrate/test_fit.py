"""Coefficients are found again in what an engine with known ones would show."""

from __future__ import annotations

import random

import msgspec
import pytest

from infctl.calibrate.fit import Engine, Fit, Measurement, Times, fit, simulate
from infctl.calibrate.plan import Experiment, experiments
from infctl.timing import Decode, Prefill, TimingModel

ENGINE = Engine(60_000, block_tokens=32)
FAST = TimingModel(
    Prefill(3.0, 0.02, 2e-6), Decode(2.5, 0.6, 0.08, 1e-4), 60_000, "", ttft_overhead_ms=4.0,
    interference=0.8,
)  # fmt: skip
SLOW = TimingModel(
    Prefill(30.0, 0.06, 6e-7), Decode(6.0, 1.9, 0.09, 2e-5), 60_000, "", ttft_overhead_ms=50.0,
    interference=0.7,
)  # fmt: skip


def measured(
    truth: TimingModel, tokens: int, noise: float, groups: tuple[str, ...] = ()
) -> list[Measurement]:
    """Three rounds of every experiment, with noise."""
    dice = random.Random(1)
    engine = msgspec.structs.replace(ENGINE, max_num_batched_tokens=tokens)
    found = []
    for each in experiments(2048):
        if groups and each.group not in groups:
            continue
        asks = tuple(msgspec.structs.replace(a, prefix=a.prefix // 32 * 32) for a in each.asks)
        experiment = Experiment(each.group, asks)
        exact = simulate(experiment, truth, engine)
        found.append(
            Measurement(
                experiment,
                tuple(
                    Times(
                        tuple(v * dice.gauss(1, noise) for v in exact.ttft_ms),
                        tuple(v * dice.gauss(1, noise) for v in exact.tpot_ms),
                    )
                    for _ in range(3)
                ),
            )
        )
    return found


@pytest.mark.parametrize(("truth", "tokens"), [(FAST, 2048), (SLOW, 8192)])
def test_known_coefficients_are_found(truth: TimingModel, tokens: int) -> None:
    found = fit(measured(truth, tokens, noise=0.01), ENGINE)
    assert found.unknown == []
    assert all(error.median < 0.03 for error in found.errors)
    assert found.engine.max_num_batched_tokens == tokens
    for new, cached in ((30, 0), (500, 0), (1900, 0), (100, 1500)):
        wanted = truth.prefill_ms(new, cached) + truth.ttft_overhead_ms
        got = found.timing.prefill_ms(new, cached) + found.timing.ttft_overhead_ms
        assert got == pytest.approx(wanted, rel=0.05)
    for batch, context in ((1, 100), (8, 8000), (32, 2000), (32, 60_000)):
        wanted = truth.decode_step_ms(batch, context)
        assert found.timing.decode_step_ms(batch, context) == pytest.approx(wanted, rel=0.05)
    assert found.timing.prefill.c0 == pytest.approx(truth.prefill.c0, rel=0.35)
    assert found.timing.interference == pytest.approx(truth.interference, rel=0.12)


def test_what_was_not_measured_is_named() -> None:
    found: Fit = fit(measured(FAST, 2048, 0.0, groups=("lone", "decode")), ENGINE)
    assert found.unknown == ["c2", "c0", "interference"]
    assert found.timing.prefill.c1 == pytest.approx(FAST.prefill.c1, rel=0.2)


def test_a_round_that_went_wrong_does_not_count() -> None:
    rounds = (Times((10.0,), ()), Times((90.0,), ()), Times((11.0,), ()))
    typical = Measurement(experiments(2048)[0], rounds).typical()
    assert typical.ttft_ms == (11.0,)
