"""Loads of several workers, each with its own slots for the same endpoints."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl import compose
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.fleet import SHARED, Endpoint, Load, State
from infctl.core.inflight import SharedInflight
from infctl.core.request import Request
from infctl.profile.model import Profile

UNITS = 3
PROFILE = Profile.model_validate(
    {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
)


class Worker:
    """A director whose own load others read from `own`."""

    def __init__(self, seed: int) -> None:
        self.director = Director(compose.pipeline(PROFILE), Random(seed))
        self.own = np.zeros((len(SHARED), 8))
        self.news: list[tuple[int, list[int], bool]] = []
        for unit in range(UNITS):
            endpoint = Endpoint(unit=f"u{unit}", url="", models=("m",), pool="p")
            self.director.handle(ev.EndpointJoined(endpoint, State.READY), 0.0)
        self.director.inflight = SharedInflight(
            self.director, self.own, lambda *record: self.news.append(record)
        )

    def send(self, name: str, now: float, stream: bool = True, blocks: tuple[int, ...] = ()) -> int:
        request = Request(id=name, model="m", prompt_bytes=4000, stream=stream, blocks=list(blocks))
        (command,) = self.director.handle(ev.RequestArrived(request), now)
        return int(command.slot)  # type: ignore[union-attr]

    def look(self, other: Worker, now: float) -> None:
        self.director.handle(ev.PeersReported(other.own[:, :UNITS].copy()), now)


STEPS = st.lists(st.tuples(st.sampled_from("sfedl"), st.integers(0, 1), st.booleans()), max_size=60)


@given(STEPS)
def test_both_see_the_sum_and_nothing_is_left(steps: list[tuple[str, int, bool]]) -> None:
    workers = [Worker(1), Worker(2)]
    open_at: list[list[str]] = [[], []]
    now = 0.0
    for number, (step, who, stream) in enumerate(steps):
        now += 0.01
        worker, mine = workers[who], open_at[who]
        if step == "s":
            worker.send(f"{number}", now, stream)
            mine.append(f"{number}")
        elif step == "l":
            worker.look(workers[1 - who], now)
        elif mine:
            name = mine[0] if step == "f" else mine.pop()
            event = {
                "f": ev.FirstByte(name),
                "e": ev.RequestFinished(name, True, None),
                "d": ev.RequestCancelled(name),
            }[step]
            worker.director.handle(event, now)
        assert (worker.own >= 0.0).all()
    for who, worker in enumerate(workers):
        worker.look(workers[1 - who], now + 1)
    for worker in workers:
        fleet = worker.director.fleet
        assert (fleet.shared == workers[0].own[:, :UNITS] + workers[1].own[:, :UNITS]).all()
        assert fleet.inflight.sum() == len(open_at[0]) + len(open_at[1])
    for who, worker in enumerate(workers):
        for name in open_at[who]:
            worker.director.handle(ev.RequestFinished(name, True, None), now + 2)
        still = dict(zip(SHARED, worker.own, strict=True))
        sent, started = still.pop("sent"), still.pop("started")
        assert all((row == 0.0).all() for row in still.values())
        assert sent.sum() == started.sum()  # all that was sent has begun, or ended


def test_a_burst_on_one_is_avoided_by_the_other() -> None:
    one, other = Worker(1), Worker(2)
    slots = {one.send(f"a{n}", 1.0) for n in range(2)}
    other.look(one, 1.001)
    assert other.send("b", 1.001) not in slots
    # What the others have open delays as own requests do, and no longer than they do.
    fleet = other.director.fleet
    assert all(fleet.free_at_ms[slot] > 1001.0 for slot in slots)
    for n in range(2):
        one.director.handle(ev.FirstByte(f"a{n}"), 1.002)
    other.look(one, 1.003)
    assert all(fleet.free_at_ms[slot] == pytest.approx(1003.0) for slot in slots)


def test_prompt_tokens_of_all_workers_are_counted() -> None:
    one, other = Worker(1), Worker(2)
    slot = one.send("a", 1.0)
    other.look(one, 1.0)
    assert other.director.fleet.inflight_tokens[slot] == one.director.fleet.inflight_tokens[slot]
    assert one.director.fleet.inflight_tokens[slot] > 500.0
    one.director.handle(ev.FirstByte("a"), 1.1)
    other.look(one, 1.1)
    assert other.director.fleet.inflight_tokens[slot] > 500.0
    one.director.handle(ev.RequestFinished("a", True, None), 1.2)
    other.look(one, 1.2)
    assert other.director.fleet.inflight_tokens.sum() == 0.0


def test_what_one_sends_the_others_learn_and_unlearn() -> None:
    one = Worker(1)
    blocks = (4, 8, 12)
    slot = one.send("a", 1.0, blocks=blocks)
    assert one.news == [(slot, [12, 8, 4], True)]
    other = Worker(2)
    other.director.handle(ev.PrefixesReported(one.news), 1.0)
    assert other.director.index.match(list(blocks), UNITS)[slot] == 256 * 3
    one.director.handle(ev.LegFailed("a", "broken", started=True), 1.1)
    assert one.news[1:] == [(slot, [12, 8, 4], False)]
    other.director.handle(ev.PrefixesReported(one.news[1:]), 1.1)
    assert len(other.director.index) == 0
    assert other.news == []  # what is heard is not told again


def test_an_endpoint_that_leaves_takes_its_load_with_it() -> None:
    one, other = Worker(1), Worker(2)
    slot = one.send("a", 1.0)
    other.look(one, 1.0)
    one.director.handle(ev.EndpointLeft(f"u{slot}"), 1.1)
    assert (one.own == 0.0).all()
    one.director.handle(ev.RequestFinished("a", True, None), 1.2)
    other.look(one, 1.2)
    assert (one.own == 0.0).all()
    assert (other.director.fleet.shared == 0.0).all()


def test_what_an_engine_reports_beyond_that_is_foreign() -> None:
    worker = Worker(1)
    slot = worker.send("a", 1.0)
    director, fleet = worker.director, worker.director.fleet
    director.handle(ev.LoadReported(f"u{slot}", Load(running=4.0, waiting=2.0)), 1.1)
    assert (fleet.inflight[slot], fleet.foreign[slot]) == (6.0, 5.0)
    assert director.inflight.own(slot) == 1.0
    worker.look(Worker(2), 1.2)
    assert fleet.inflight[slot] == 6.0
    director.handle(ev.RequestFinished("a", True, None), 1.3)
    director.handle(ev.LoadReported(f"u{slot}", None), 1.4)
    assert (fleet.inflight[slot], fleet.foreign[slot]) == (0.0, 0.0)
