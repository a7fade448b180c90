import asyncio
from time import perf_counter

import pytest

from infctl.bench import gauge as module
from infctl.bench.gauge import Gauge


async def test_it_sees_a_blocked_loop_and_counts_tokens() -> None:
    gauge = Gauge(speed=10)
    gauge.start(perf_counter())
    for _ in range(12):
        gauge.add_tokens(5)
        await asyncio.sleep(0.02)
        end_s = perf_counter() + 0.02
        while perf_counter() < end_s:
            pass
    gauge.stop()
    assert gauge.lag_ms(0.99) > 8
    assert gauge.ticks[-1].tokens == 60
    assert gauge.ticks[-1].at_s == pytest.approx(gauge.wall_s * 10, rel=0.05)
    assert 0 <= gauge.cpu_share < 1.5


async def test_an_idle_loop_has_no_lag_to_speak_of() -> None:
    gauge = Gauge(speed=1)
    gauge.start(perf_counter())
    await asyncio.sleep(0.3)
    gauge.stop()
    assert gauge.lag_ms(0.5) < 5


async def test_ticks_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICKS_MAX", 8)
    gauge = Gauge(speed=1)
    gauge.start(perf_counter())
    gauge._every = 1
    await asyncio.sleep(0.4)
    gauge.stop()
    assert len(gauge.ticks) <= 9
    assert gauge.ticks[0].at_s < 0.05


def test_nothing_sampled() -> None:
    assert Gauge(1).lag_ms(0.99) == 0.0
    assert Gauge(1).cpu_share == 0.0
