"""Filters, and the masks the pipeline caches of them."""

from __future__ import annotations

import random

import numpy as np

from infctl import compose
from infctl.core.fleet import State
from infctl.core.scheduling import Pipeline
from infctl.plugin import Endpoint, Fleet, Request, Role


def fleet() -> Fleet:
    made = Fleet()
    made.add(Endpoint(unit="a", url="", models=("m", "alias")), State.READY)
    made.add(Endpoint(unit="b", url="", models=("other",)), State.READY)
    made.add(Endpoint(unit="c", url="", models=("m",), role="prefill"), State.READY)
    made.add(Endpoint(unit="d", url="", models=("m",)), State.DRAINING)
    return made


def allowed(name: str, request: Request) -> list[bool]:
    found: list[bool] = compose.load("filter", name).allow(request, fleet()).tolist()
    return found


def test_each_filter_by_its_rule() -> None:
    request = Request(id="r", model="alias")
    assert allowed("ready", request) == [True, True, True, False]
    assert allowed("model", request) == [True, False, False, False]
    assert allowed("role", request) == [True, True, False, True]
    assert allowed("role", Request(id="r", model="m", role=Role.PREFILL)) == [
        False, False, True, False,
    ]  # fmt: skip


def test_the_joint_mask_is_cached_until_the_fleet_changes() -> None:
    filters = [(n, compose.load("filter", n)) for n in ("ready", "role", "model")]
    pipeline = Pipeline(filters, [], compose.load("picker", "best"), "t")
    made, request = fleet(), Request(id="r", model="m")
    allowed = pipeline.allowed(request, made)
    assert allowed.penalty.tolist() == [0.0, -np.inf, -np.inf, -np.inf]
    assert allowed.dropped == (None, "model", "role", "ready")
    assert allowed.any
    assert pipeline.allowed(request, made) is allowed
    made.set_state(3, State.READY)
    assert pipeline.allowed(request, made).penalty.tolist() == [0.0, -np.inf, -np.inf, 0.0]
    none = Request(id="r", model="none")
    assert pipeline.decide(none, made, np.zeros(4), random.Random()) is None


def test_excluded_slots_are_avoided_unless_nothing_else_is_left() -> None:
    filters = [(n, compose.load("filter", n)) for n in ("ready", "role", "model")]
    pipeline = Pipeline(filters, [], compose.load("picker", "best"), "t")
    made, request, dice = fleet(), Request(id="r", model="m"), random.Random(1)
    made.set_state(3, State.READY)

    def pick(*excluded: int) -> int:
        choice = pipeline.decide(request, made, np.zeros(4), dice, excluded)
        assert choice is not None
        return choice.slot

    assert {pick(0) for _ in range(20)} == {3}
    assert pick(0, 3) in (0, 3)
