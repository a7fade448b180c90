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


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A pick and what it was made from: the weighted sum, each scorer's weighted column, and per
    slot the filter that dropped it. `columns` is empty for a picker that uses no scores."""

    slot: int
    scores: Column
    columns: tuple[tuple[str, Column], ...]
    dropped: tuple[str | None, ...]


class _Allowed(msgspec.Struct, frozen=True):
    """A cached joint mask: 0 where every filter allows and −inf elsewhere, and who dropped whom."""

    penalty: Column
    any: bool
    dropped: tuple[str | None, ...]


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
        self._masks: dict[tuple[Hashable, ...], _Allowed] = {}
        self._masks_version = -1

    def key(self, request: Request) -> Hashable:
        """Requests with equal keys may use the same endpoints."""
        return tuple([f.key(request) for _, f in self.filters])

    def allowed(self, request: Request, fleet: Fleet) -> _Allowed:
        """Who may serve the request, by all filters."""
        if self._masks_version != fleet.version or len(self._masks) > _MASKS_MAX:
            self._masks.clear()
            self._masks_version = fleet.version
        key = tuple([f.key(request) for _, f in self.filters])
        entry = self._masks.get(key)
        if entry is None:
            entry = self._masks[key] = self._build_mask(request, fleet)
        return entry

    def _build_mask(self, request: Request, fleet: Fleet) -> _Allowed:
        dropped: list[str | None] = [None if e is not None else "empty" for e in fleet.slots]
        for name, item in self.filters:
            for slot in np.flatnonzero(~item.allow(request, fleet)):
                dropped[slot] = dropped[slot] or name
        mask = fleet.mask(reason is None for reason in dropped)
        return _Allowed(np.where(mask, 0.0, -np.inf), bool(mask.any()), tuple(dropped))

    def decide(
        self,
        request: Request,
        fleet: Fleet,
        cached: Column,
        random: Random,
        excluded: Sequence[int] = (),
    ) -> Choice | None:
        """The slot to use and why, or None when nothing may serve the request.

        `excluded` slots (tried and failed) are avoided unless nothing else is left.
        """
        allowed = self.allowed(request, fleet)
        if not allowed.any:
            return None
        scores = self._exclude(allowed.penalty, excluded) if excluded else allowed.penalty
        columns: tuple[tuple[str, Column], ...] = ()
        if self.picker.uses_scores:
            columns = self._columns(request, fleet, cached)
            for _, column in columns:
                scores = scores + column
        slot = self.picker.pick(scores, fleet, random)
        return Choice(slot, scores, columns, allowed.dropped)

    def preview(self, request: Request, fleet: Fleet, cached: Column) -> Choice:
        """How a request would score now; the picker, which may keep state, is not asked, so
        `slot` is the best score's, or −1 where none is allowed or the picker uses no scores."""
        allowed = self.allowed(request, fleet)
        columns = self._columns(request, fleet, cached)
        scores = sum((column for _, column in columns), start=allowed.penalty)
        certain = allowed.any and self.picker.uses_scores
        return Choice(int(scores.argmax()) if certain else -1, scores, columns, allowed.dropped)

    def _columns(
        self, request: Request, fleet: Fleet, cached: Column
    ) -> tuple[tuple[str, Column], ...]:
        return tuple(
            [
                (w.name, score if w.weight == 1.0 else w.weight * score)
                for w in self.scorers
                for score in [w.scorer.score(request, fleet, cached)]
            ]
        )

    @staticmethod
    def _exclude(mask: Column, excluded: Sequence[int]) -> Column:
        narrowed = mask.copy()
        narrowed[list(excluded)] = -np.inf
        return narrowed if np.isfinite(narrowed).any() else mask
