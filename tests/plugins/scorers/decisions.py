"""A fleet from a table, and whom a policy of one scorer would choose."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from infctl import compose
from infctl.core.fleet import State
from infctl.core.scheduling import Pipeline, Weighted
from infctl.plugin import Endpoint, Fleet, Request
from infctl.profile.model import PluginRef

if TYPE_CHECKING:
    from collections.abc import Sequence


def fleet_of(size: int, down: Sequence[int] = (), **columns: Sequence[float]) -> Fleet:
    """`size` endpoints, ready but for those `down`, with numbers in the named columns."""
    made = Fleet()
    for number in range(size):
        slot = made.add(Endpoint(unit=f"u{number}", url="", models=("m",)))
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
    **parameters: float,
) -> set[int]:
    """The slots that the policy draws among: none where it finds no endpoint."""
    scorer = compose.load("scorer", PluginRef(type=name, **parameters))  # type: ignore[arg-type]
    ready, picker = compose.load("filter", "ready"), compose.load("picker", "best")
    policy = Pipeline([("ready", ready)], [Weighted(name, scorer)], picker, name)
    expected = np.array(cached or [0.0] * len(fleet), dtype=float)
    choice = policy.decide(request, fleet, expected, Random(1))
    if choice is None:
        return set()
    best = choice.scores.max()
    slots = {int(slot) for slot in np.flatnonzero(choice.scores >= best - 1e-9 * (1 + abs(best)))}
    assert choice.slot in slots
    return slots
