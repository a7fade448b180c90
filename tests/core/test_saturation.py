"""When one more request would only wait at an endpoint."""

from __future__ import annotations

import numpy as np

from infctl.core.fleet import Endpoint, Fleet, Load, State
from infctl.core.saturation import Saturation


def made(slots: int = 1) -> tuple[Fleet, Saturation]:
    fleet = Fleet()
    saturation = Saturation(fleet, backlog_ms=1000.0)
    for n in range(slots):
        fleet.add(Endpoint(unit=f"u{n}", url="", models=("m",)), State.READY)
        saturation.join(n)
    return fleet, saturation


def backlog(fleet: Fleet, slot: int, tokens: float, ms_per_token: float = 0.1) -> None:
    fleet.cells["pending_tokens"][slot] = tokens
    fleet.cells["ms_per_token"][slot] = ms_per_token
    fleet.cells["free_at_ms"][slot] = fleet.now_ms + tokens * ms_per_token


def send(saturation: Saturation, count: int) -> None:
    saturation._fleet.cells["sent"][0] += count


def begin(saturation: Saturation, count: int) -> None:
    saturation._fleet.cells["started"][0] += count


def test_prefill_is_measured_in_time() -> None:
    fleet, saturation = made()
    backlog(fleet, 0, 9_999.0)
    assert not saturation.full(0)
    backlog(fleet, 0, 10_000.0)
    assert saturation.full(0)
    assert not saturation.full(0, 2.0)
    backlog(fleet, 0, 10_000.0, ms_per_token=0.05)
    assert not saturation.full(0)


def test_a_long_prompt_that_should_be_nearly_done_leaves_room() -> None:
    fleet, saturation = made()
    backlog(fleet, 0, 50_000.0)
    fleet.now_ms += 4_500.0
    assert not saturation.full(0)


def test_an_estimate_without_streams_never_fills_an_endpoint() -> None:
    fleet, saturation = made()
    fleet.cells["free_at_ms"][0] = 1e9
    fleet.cells["ms_per_token"][0] = 1.0
    assert not saturation.full(0)


def test_what_has_waited_long_in_the_engine_fills_it() -> None:
    _, saturation = made()
    send(saturation, 40)
    begin(saturation, 2)
    saturation.reported(0, Load(waiting=38.0))
    assert saturation.full(0)
    begin(saturation, 19)
    assert saturation.full(0)
    begin(saturation, 1)
    assert not saturation.full(0)
    send(saturation, 1)
    assert saturation.full(0)


def test_a_queue_that_drains_within_the_interval_is_no_saturation() -> None:
    _, saturation = made()
    send(saturation, 200)
    begin(saturation, 193)
    saturation.reported(0, Load(waiting=7.0))
    send(saturation, 100)
    assert not saturation.full(0)


def test_an_engine_keeps_about_an_intervals_worth_waiting() -> None:
    _, saturation = made()
    send(saturation, 60)
    for _ in range(8):
        saturation.reported(0, Load(waiting=60.0))
        begin(saturation, 5)
        send(saturation, 5)
    saturation.reported(0, Load(waiting=8.0))
    begin(saturation, 5)
    assert not saturation.full(0)
    send(saturation, 2)
    assert saturation.full(0)


def test_the_work_of_other_routers_leaves_this_one_its_share() -> None:
    _, saturation = made()
    saturation.reported(0, Load(waiting=50.0))
    assert not saturation.full(0)
    send(saturation, 1)
    assert not saturation.full(0)
    send(saturation, 1)
    assert saturation.full(0)


def test_an_engine_that_goes_quiet_is_not_full() -> None:
    for quiet in (None, Load(), Load(waiting=0.0)):
        _, saturation = made()
        send(saturation, 10)
        saturation.reported(0, Load(waiting=10.0))
        assert saturation.full(0)
        saturation.reported(0, quiet)
        assert not saturation.full(0)


def test_the_column_says_what_the_cells_say() -> None:
    dice = np.random.default_rng(1)
    fleet, saturation = made(50)
    for slot in range(50):
        backlog(fleet, slot, float(dice.integers(0, 40_000)))
        fleet.cells["queued_max"][slot] = float(dice.integers(2, 6))
        fleet.cells["queued_ahead"][slot] = float(dice.integers(-3, 12))
        fleet.cells["sent"][slot] = float(dice.integers(0, 4))
    for times in (1.0, 2.0):
        full = [slot for slot in range(50) if saturation.full(slot, times)]
        assert 0 < len(full) < 50
        assert saturation.full_slots(times) == full
    for slot in range(50):
        penalty = np.full(50, -np.inf)
        penalty[slot] = 0.0
        assert saturation.room(penalty) is not saturation.full(slot)
    assert not saturation.room(np.full(50, -np.inf))
