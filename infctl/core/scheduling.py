"""The seams of scheduling, and the pipeline compiled from them.

A **filter** says which endpoints may serve a request, a **scorer** gives each endpoint a score
(higher is better: a share in 0..1, or minus a cost in ms), a **picker** chooses from the weighted
sum, a **handler** turns picks into legs. Filters depend on little (the fleet's version and a key
of the request), so their joint mask is cached as a column of 0 and −inf and added to the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from random import Random

    from infctl.core.fleet import Column, Fleet, Mask
    from infctl.core.request import Request

_MASKS_MAX = 256


@runtime_checkable
class Filter(Protocol):
    """Which endpoints may serve a request."""

    def key(self, request: Request) -> Hashable:
        """What of the request the mask depends on; equal keys share one cached mask."""
        ...

    def allow(self, request: Request, fleet: Fleet) -> Mask:
        """True per slot where the endpoint may serve the request."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """How good each endpoint is for a request."""

    unit: ClassVar[Literal["share", "ms"]]

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        """One score per slot, higher is better; `cached` holds the tokens the prefix index
        expects to hit at each slot."""
        ...


@runtime_checkable
class Picker(Protocol):
    """Which slot to take. `uses_scores` False lets the pipeline skip scoring."""

    uses_scores: ClassVar[bool]

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        """The chosen slot; `scores` is −inf where an endpoint may not serve. At least one slot
        is allowed."""
        ...


@runtime_checkable
class Handler(Protocol):
    """How many legs a request takes and which role each asks for."""

    roles: ClassVar[tuple[str, ...]]


class Weighted(msgspec.Struct, frozen=True):
    """A scorer, its name in the profile and its weight."""

    name: str
    scorer: Scorer
    weight: float = 1.0


class Row(msgspec.Struct, frozen=True):
    """One endpoint in an explanation: which filter dropped it, or its score by scorer."""

    endpoint: str
    dropped_by: str | None
    scores: dict[str, float]
    total: float | None
    cached_tokens: int


class Explanation(msgspec.Struct, frozen=True):
    """Why a request would go where it goes."""

    picked: str | None
    rows: list[Row]


class Pipeline:
    """Filters, scorers and a picker, compiled once per profile."""

    def __init__(
        self,
        filters: Sequence[tuple[str, Filter]],
        scorers: Sequence[Weighted],
        picker: Picker,
        name: str,
    ) -> None:
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self.name = name
        self._masks: dict[tuple[Hashable, ...], tuple[Column, bool]] = {}
        self._masks_version = -1

    def mask(self, request: Request, fleet: Fleet) -> tuple[Column, bool]:
        """0 where every filter allows, −inf elsewhere; and whether any slot is allowed."""
        if self._masks_version != fleet.version or len(self._masks) > _MASKS_MAX:
            self._masks.clear()
            self._masks_version = fleet.version
        key = tuple([f.key(request) for _, f in self.filters])
        entry = self._masks.get(key)
        if entry is None:
            entry = self._masks[key] = self._build_mask(request, fleet)
        return entry

    def _build_mask(self, request: Request, fleet: Fleet) -> tuple[Column, bool]:
        allowed = fleet.mask(e is not None for e in fleet.slots)
        for _, item in self.filters:
            allowed &= item.allow(request, fleet)
        return np.where(allowed, 0.0, -np.inf), bool(allowed.any())

    def decide(
        self,
        request: Request,
        fleet: Fleet,
        cached: Column,
        random: Random,
        excluded: Sequence[int] = (),
    ) -> int | None:
        """The slot to use, or None when nothing may serve the request.

        `excluded` slots (tried and failed) are avoided unless nothing else is left.
        """
        scores, any_allowed = self.mask(request, fleet)
        if not any_allowed:
            return None
        if excluded:
            scores = self._exclude(scores, excluded)
        if self.picker.uses_scores:
            for item in self.scorers:
                column = item.scorer.score(request, fleet, cached)
                scores = scores + (column if item.weight == 1.0 else item.weight * column)
        return self.picker.pick(scores, fleet, random)

    @staticmethod
    def _exclude(mask: Column, excluded: Sequence[int]) -> Column:
        narrowed = mask.copy()
        narrowed[list(excluded)] = -np.inf
        return narrowed if np.isfinite(narrowed).any() else mask

    def explain(
        self, request: Request, fleet: Fleet, cached: Column, picked: int | None
    ) -> Explanation:
        """Every endpoint with what dropped it or how it scored, as of now."""
        columns = {w.name: w.weight * w.scorer.score(request, fleet, cached) for w in self.scorers}
        dropped = {name: f.allow(request, fleet) for name, f in self.filters}
        rows = []
        for slot, endpoint in fleet:
            by = next((name for name, allowed in dropped.items() if not allowed[slot]), None)
            scores = {name: float(column[slot]) for name, column in columns.items()}
            total = None if by else sum(scores.values())
            rows.append(Row(endpoint.id, by, scores, total, int(cached[slot])))
        chosen = None if picked is None else fleet.slots[picked]
        return Explanation(chosen.id if chosen else None, rows)
