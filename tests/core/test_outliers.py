"""Who is far worse than its peers, and who only looks like it."""

from __future__ import annotations

import pytest

from infctl.core import outliers
from infctl.core.breaker import Breaker
from infctl.core.fleet import Endpoint, Fleet, State


def breakers(*counts: tuple[int, int]) -> dict[int, Breaker]:
    found = {}
    for slot, (ok, failed) in enumerate(counts):
        found[slot] = Breaker()
        found[slot].ok, found[slot].failed = ok, failed
    return found


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(70, 30), (100, 0), (100, 0)], 0),
        ([(100, 0), (70, 30), (99, 1)], 1),
        ([(70, 30), (70, 30), (72, 28)], None),  # all alike: the requests are to blame
        ([(90, 10), (100, 0), (100, 0)], None),  # a tenth is no reason
        ([(7, 3), (100, 0)], None),  # too few to tell
        ([(70, 30), (5, 0)], None),
    ],
)
def test_the_one_that_fails_far_more_than_its_peers(
    counts: list[tuple[int, int]], expected: int | None
) -> None:
    found = outliers.failing(breakers(*counts))
    assert (found[0] if found else None) == expected


def fleet(pool: str, *fixed_ms: float) -> Fleet:
    made = Fleet()
    for number, value in enumerate(fixed_ms):
        endpoint = Endpoint(unit=f"u{number}", url="", models=("m",), pool=pool)
        made.cells["fixed_ms"][made.add(endpoint, State.READY)] = value
    return made


def test_the_one_that_is_far_slower() -> None:
    found = outliers.slow(fleet("p", 100.0, 100.0, 400.0), [0, 1, 2])
    assert found == (2, "is 4.0 times slower than its peers")
    assert outliers.slow(fleet("p", 100.0, 120.0, 250.0), [0, 1, 2]) is None
    assert outliers.slow(fleet("p", 100.0, 400.0), [0, 1]) is None
    assert outliers.slow(fleet("", 100.0, 100.0, 400.0), [0, 1, 2]) is None


def test_only_ready_endpoints_of_one_pool_and_model_are_compared() -> None:
    made = Fleet()
    for name, pool, state in (
        ("a", "p", State.READY),
        ("b", "p", State.READY),
        ("c", "p", State.DRAINING),
        ("d", "q", State.READY),
    ):
        made.add(Endpoint(unit=name, url="", models=("m",), pool=pool), state)
    assert outliers.groups(made, range(4)) == [[0, 1]]
