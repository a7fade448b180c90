"""Figures by endpoint, model and tenant."""

from __future__ import annotations

from infctl.core.events import Usage
from infctl.router.stats import OTHER, EndpointStats, Named, total


def test_totals_add_up() -> None:
    one, other = EndpointStats(), EndpointStats()
    one.prompt_tokens, one.cached_tokens, other.prompt_tokens = 100, 50, 100
    one.ttfts_ms.extend([1.0, 2.0])
    other.ttfts_ms.extend([3.0])
    whole = total([one, other])
    assert (whole.hit_rate(), whole.ttft_ms()["p50"]) == (0.25, 2.0)
    assert EndpointStats().hit_rate() is None


def test_names_are_bounded() -> None:
    named = Named(names_max=2)
    for name in ("a", "b", "c", "a", "d"):
        named.of(name).add(200, 0.5, 0.1, Usage(10, 2))
    found = {name: (sum(red.statuses.values()), red.prompt_tokens) for name, red in named.items()}
    assert found == {"a": (2, 20), "b": (1, 10), OTHER: (2, 20)}


def test_who_is_called_other_is_one_series_with_the_rest() -> None:
    named = Named(names_max=1)
    for name in (OTHER, "a", "b"):
        named.of(name).add(200, 0.5, None, None)
    assert [name for name, _ in named.items()] == ["a", OTHER]


def test_names_nobody_vouches_for_become_none() -> None:
    named = Named()
    named.of("x", known=False).add(404, 0.5, None, None)
    named.of("m").add(200, 0.5, None, None)
    named.of("m", known=False).add(500, 0.5, None, None)
    assert {name: dict(red.statuses) for name, red in named.items()} == {
        "m": {200: 1, 500: 1}, OTHER: {404: 1},
    }  # fmt: skip
