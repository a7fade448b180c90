"""Routers that know nothing of each other, and agree where prompts belong."""

from __future__ import annotations

from random import Random

import numpy as np

from infctl import compose
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.fleet import Endpoint, Load, State
from infctl.core.request import Request
from infctl.profile.model import Profile

PROFILE = Profile.model_validate(
    {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
)


def router(names: str, foreign: float = 6.0) -> Director:
    """A router over endpoints found in this order, of whose requests so many are not its own."""
    director = Director(compose.pipeline(PROFILE), Random(1))
    for name in names:
        endpoint = Endpoint(unit=name, url="", models=("m",), pool="p")
        director.handle(ev.EndpointJoined(endpoint, State.READY), 0.0)
        load = Load(running=foreign, waiting=0.0)
        director.handle(ev.LoadReported(name, load), 0.1)
    return director


def ask(*blocks: int) -> Request:
    return Request(
        id="r", model="m", prompt_bytes=256 * len(blocks), blocks=list(blocks), prompt_tokens=1000.0
    )


def expected(director: Director, request: Request) -> dict[str, float]:
    """Tokens expected beyond what is known, by endpoint."""
    cached = np.zeros(len(director.fleet))
    found = director.homes.expect(request, cached, director.pipeline)
    return {e.unit: float(found[slot]) for slot, e in director.fleet if found[slot]}


def test_a_router_alone_expects_nothing() -> None:
    director = router("abcd", foreign=0.0)
    assert director.homes.share == 0.0
    assert expected(director, ask(4, 8)) == {}


def test_routers_agree_on_homes_whatever_their_slots() -> None:
    one, other = router("abcdefgh"), router("hgfedcba")
    assert one.homes.share == 1.0
    homes = set()
    for number in range(1, 200):
        found = expected(one, ask(number * 4, number * 4 + 4))
        assert found == expected(other, ask(number * 4, number * 4 + 4))
        assert list(found.values()) == [1000.0]
        homes |= set(found)
    assert homes == set("abcdefgh")


def test_an_endpoint_that_leaves_moves_only_its_own() -> None:
    director = router("abcdefgh")
    before = {n: expected(director, ask(n * 4)) for n in range(1, 200)}
    director.handle(ev.EndpointChanged("c", State.EJECTED), 1.0)
    for n, found in before.items():
        after = expected(director, ask(n * 4))
        assert (after == found) == ("c" not in found)
        assert "c" not in after


def test_a_system_prompt_has_no_home() -> None:
    """What many requests start with must not draw them all to one endpoint."""
    director = router("abcd")
    homes = [expected(director, ask(4, 8, 1000 + n * 4)) for n in range(200)]
    counts = {name: sum(name in found for found in homes[20:]) for name in "abcd"}
    assert min(counts.values()) > 20


def test_what_was_seen_is_bounded() -> None:
    director = router("abcd")
    for n in range(20_000):
        director.homes.expect(ask(n * 4), np.zeros(4), director.pipeline)
    assert len(director.homes._seen) < 5000


def test_what_is_known_counts_for_queues_and_what_is_expected_for_the_choice() -> None:
    director = router("abcd")
    home = next(iter(expected(director, ask(4, 8))))
    (command,) = director.handle(ev.RequestArrived(ask(4, 8)), 1.0)
    slot = director.fleet.slot_of(home)
    assert (command.slot, command.cached_tokens) == (slot, 0)  # type: ignore[union-attr]
