"""A newcomer under load gets its share gradually, whatever the policy."""

from __future__ import annotations

from collections import Counter

import pytest

from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.fleet import State

from .test_director import arrive, director, join, request


def loaded(units: int, **routing: object) -> Director:
    made = director(units, **routing)
    for number in range(units * 40):
        arrive(made, request(f"old{number}", prompt=number), 50.0)
    return made


def offered(made: Director, start: float, seconds: float, rate: float = 100.0) -> Counter[int]:
    count = int(seconds * rate)
    times = [start + n / rate for n in range(count)]
    return Counter(
        arrive(made, request(f"r{start}-{n}", prompt=1000 + n), at).slot
        for n, at in enumerate(times)
    )


@pytest.mark.parametrize("picker", ["best", "power-of-two", "round-robin"])
def test_it_gets_less_than_its_share_at_first_and_its_share_in_the_end(picker: str) -> None:
    made = loaded(4, picker=picker)
    join_at(made, 4, 100.0)
    first = offered(made, 100.0, 1.0)
    assert 1 <= first[4] <= 100 / 5
    later = offered(made, 108.0, 2.0)
    assert later[4] <= 200 / 5 + 2
    assert later[4] > 4 * first[4] / 2
    offered(made, 110.1, 0.1)
    assert not made.slow_start.starting


def join_at(made: Director, number: int, now: float) -> None:
    join(made, number, State.STARTING)
    made.handle(ev.EndpointChanged(f"u{number}", State.READY), now)


def test_without_slow_start_it_would_get_more_than_twice_its_share() -> None:
    made = loaded(4)
    made.slow_start.duration_ms = 0.0
    join_at(made, 4, 100.0)
    assert offered(made, 100.0, 1.0)[4] > 2 * 100 / 5


def test_at_a_fleets_start_nobody_is_slowed_down() -> None:
    made = director(1)
    join_at(made, 1, 0.5)
    join_at(made, 2, 1.0)
    assert not made.slow_start.starting


def test_one_that_is_alone_takes_all() -> None:
    made = loaded(2)
    join_at(made, 2, 100.0)
    for name in ("u0", "u1"):
        made.handle(ev.EndpointChanged(name, State.EJECTED), 100.1)
    assert offered(made, 100.2, 0.5) == {2: 50}


def test_who_leaves_is_forgotten() -> None:
    made = loaded(2)
    join_at(made, 2, 100.0)
    assert set(made.slow_start.starting) == {2}
    made.handle(ev.EndpointChanged("u2", State.EJECTED), 101.0)
    assert not made.slow_start.starting
    join_at(made, 2, 102.0)
    made.handle(ev.EndpointLeft("u2"), 103.0)
    assert not made.slow_start.starting
