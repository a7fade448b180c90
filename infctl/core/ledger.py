"""The last decisions: what each was based on, what was expected, what came true.

A decision keeps references to the columns it was made from, which nothing writes to afterwards, so
recording costs a struct and not a copy. The ledger is bounded by decisions and by column cells.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infctl.core.fleet import Column, Endpoint
    from infctl.core.scheduling import Choice

_DECISIONS_MAX = 1000
_CELLS_MAX = 2_000_000


class Decision(msgspec.Struct, gc=False):
    """One choice of an endpoint. `name` is the request id clients see; times in ms; `queue_ms` is
    how long it waited at the router before.

    `endpoints` are the fleet's slots at the time. What came true is None until known, and where
    the engine or the request's form does not tell (TTFT of an answer that is not streamed).
    """

    name: str
    model: str
    at_ms: float
    attempt: int
    prompt_tokens: float
    endpoints: tuple[Endpoint | None, ...]
    cached: Column
    choice: Choice
    expected_ttft_ms: float
    expected_cached_tokens: float
    queue_ms: float = 0.0
    ttft_ms: float | None = None
    cached_tokens: int | None = None
    outcome: str = "in flight"


class Row(msgspec.Struct, frozen=True):
    """One endpoint in an explanation: the filter that dropped it, or its score by scorer."""

    endpoint: str
    picked: bool
    dropped_by: str | None
    scores: dict[str, float]
    total: float | None
    cached_tokens: int


def rows(
    endpoints: tuple[Endpoint | None, ...], cached: Column, choice: Choice, picked: int | None
) -> list[Row]:
    """Every endpoint there was, best first, those that were dropped last."""
    found = []
    for slot, endpoint in enumerate(endpoints):
        if endpoint is None:
            continue
        reason = choice.dropped[slot]
        scores = {n: float(column[slot]) for n, column in choice.columns if reason is None}
        total = float(choice.scores[slot]) if reason is None and choice.columns else None
        hit = int(cached[slot])
        found.append(Row(endpoint.id, slot == picked, reason, scores, total, hit))
    found.sort(key=_rank)
    return found


def _rank(row: Row) -> tuple[bool, float]:
    return row.dropped_by is not None, -row.total if row.total is not None else 0.0


class Ledger:
    """The last decisions, newest last."""

    def __init__(self) -> None:
        self._decisions: deque[Decision] = deque()
        self._cells = 0

    def __len__(self) -> int:
        return len(self._decisions)

    def __iter__(self) -> Iterator[Decision]:
        return reversed(self._decisions)

    def add(self, decision: Decision) -> None:
        """Record a decision, forgetting the oldest ones beyond the bounds."""
        decisions = self._decisions
        decisions.append(decision)
        self._cells += _cells(decision)
        while len(decisions) > _DECISIONS_MAX or (self._cells > _CELLS_MAX and len(decisions) > 1):
            self._cells -= _cells(decisions.popleft())

    def find(self, name: str) -> list[Decision]:
        """The decisions about one request, newest first: one per attempt."""
        return [d for d in self if d.name == name]


def _cells(decision: Decision) -> int:
    return len(decision.endpoints) * (2 + len(decision.choice.columns))
