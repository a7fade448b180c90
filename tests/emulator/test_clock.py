"""Engine time."""

from __future__ import annotations

import pytest

from infctl.emulator.clock import EngineClock


def test_rates_may_change() -> None:
    wall = [100.0]
    clock = EngineClock(lambda: wall[0], 2.0)
    wall[0] = 101.0
    assert clock.now_ms() == 2000
    assert clock.wall_s(5000.0) == 102.5
    clock.set_rate(0.0)
    wall[0] = 200.0
    assert clock.now_ms() == 2000
    assert clock.wall_s(5000.0) is None
    clock.set_rate(10.0)
    wall[0] = 200.1
    assert clock.now_ms() == pytest.approx(3000)
    assert clock.wall_s(2000.0) == 200.0
