"""Columns, slots and states."""

from __future__ import annotations

import numpy as np
import pytest

from infctl.core.fleet import Endpoint, Fleet, Load, State


def endpoint(name: str, **more: object) -> Endpoint:
    return Endpoint(unit=name, url=f"http://{name}", models=("m",), **more)  # type: ignore[arg-type]


def test_columns_grow_and_keep_their_values() -> None:
    fleet = Fleet()
    for number in range(40):
        slot = fleet.add(endpoint(f"u{number}", rtt_ms=float(number)), State.READY)
        fleet.cells["inflight"][slot] = number
    assert fleet.inflight.tolist() == fleet.rtt_ms.tolist() == [float(n) for n in range(40)]
    assert fleet.ready.tolist() == [True] * 40


def test_a_freed_slot_is_used_again_clean_and_under_a_new_generation() -> None:
    fleet = Fleet()
    slot = fleet.add(endpoint("a"), State.READY)
    fleet.cells["pending"][slot] = 3
    before = fleet.generation[slot]
    assert fleet.remove("a") == slot
    assert not fleet.ready[slot]
    assert fleet.add(endpoint("b")) == slot
    assert (fleet.pending[slot], fleet.generation[slot]) == (0.0, before + 1)
    assert fleet.slot_of("a") is None


def test_who_serves_a_model_follows_the_fleet() -> None:
    fleet = Fleet()
    for name, models in (("a", ("m", "alias")), ("b", ("other",)), ("c", ("m",))):
        fleet.add(Endpoint(unit=name, url="", models=models), State.READY)
    assert fleet.serving("m").tolist() == [True, False, True]
    assert fleet.serving("alias").tolist() == [True, False, False]
    assert fleet.serving("none").tolist() == [False] * 3
    fleet.set_state(0, State.DRAINING)
    assert fleet.serving("m").tolist() == [False, False, True]
    assert not fleet.serving("alias").any()
    fleet.remove("c")
    assert not fleet.serving("m").any()
    fleet.add(endpoint("d"), State.READY)
    assert fleet.serving("m").tolist() == [False, False, True]
    for number in range(100):
        fleet.serving(f"made-up-{number}")
    assert set(fleet._serving) == {"m"}


def test_an_id_is_there_once() -> None:
    fleet = Fleet()
    fleet.add(endpoint("a"))
    with pytest.raises(ValueError, match="'a' is in the fleet already"):
        fleet.add(endpoint("a"))
    fleet.add(endpoint("a", rank=1))
    assert [e.id for _, e in fleet] == ["a", "a.1"]


def test_what_a_scrape_lacks_keeps_its_last_value() -> None:
    fleet = Fleet()
    slot = fleet.add(endpoint("a"))
    fleet.report(slot, Load(waiting=5, running=2, kv_usage=0.5))
    fleet.report(slot, Load(running=3))
    fleet.report(slot, None)
    assert (fleet.waiting[slot], fleet.running[slot], fleet.kv_usage[slot]) == (5.0, 3.0, 0.5)
    assert fleet.loads[slot] is None


def test_the_version_changes_with_state_and_membership_alone() -> None:
    fleet = Fleet()
    slot = fleet.add(endpoint("a"))
    version = fleet.version
    fleet.report(slot, Load(waiting=1))
    fleet.set_state(slot, State.STARTING)
    assert fleet.version == version
    fleet.set_state(slot, State.READY)
    assert fleet.version > version
    assert np.flatnonzero(fleet.ready).tolist() == [slot]
