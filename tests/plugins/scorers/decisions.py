"""A fleet from a table, and whom a policy of one scorer would choose."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from infctl import compose
from infctl.core.fleet import State
from infctl.core.scheduling import Pipeline, Weighted
from infctl.plugin import Endpoint, Fleet, Request
from infctl.profile.model import PluginRef

if TYPE_CHECKING:
    from collections.abc import Sequence


THOUSAND = 1_050
"""Endpoints of a large fleet."""

SEEDS = st.integers(0, 2**32 - 1)
"""A large fleet is drawn from one number, for hypothesis has too much to try otherwise."""


def fleet_of(
    size: int, down: Sequence[int] = (), others: Sequence[int] = (), **columns: Sequence[float]
) -> Fleet:
    """`size` endpoints, ready but for those `down`, with numbers in the named columns; `others`
    have another model."""
    made = Fleet()
    for number in range(size):
        model = "other" if number in others else "m"
        slot = made.add(Endpoint(unit=f"u{number}", url="", models=(model,)))
        made.set_state(slot, State.EJECTED if slot in down else State.READY)
        for name, values in columns.items():
            made.cells[name][slot] = values[slot]
    return made


def prompt(tokens: float = 1000.0, blocks: Sequence[int] = ()) -> Request:
    return Request(id="r", model="m", prompt_tokens=tokens, blocks=list(blocks))


def chosen(
    name: str,
    fleet: Fleet,
    request: Request,
    cached: Sequence[float] = (),
    tried: Sequence[int] = (),
    **parameters: float,
) -> set[int]:
    """The slots that the policy draws among: none where it finds no endpoint. Those `tried` failed
    before."""
    scorer = compose.load("scorer", PluginRef(type=name, **parameters))  # type: ignore[arg-type]
    filters = [(each, compose.load("filter", each)) for each in ("ready", "model")]
    policy = Pipeline(filters, [Weighted(name, scorer)], compose.load("picker", "best"), name)
    expected = np.array(cached or [0.0] * len(fleet), dtype=float)
    choice = policy.decide(request, fleet, expected, Random(1), tried)
    if choice is None:
        return set()
    best = choice.scores.max()
    slots = {int(slot) for slot in np.flatnonzero(choice.scores >= best - 1e-9 * (1 + abs(best)))}
    assert choice.slot in slots
    return slots
