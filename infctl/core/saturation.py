"""When is an endpoint saturated? When one more request could only wait in the engine's queue.

Two facts tell, both in time rather than in requests:

- *Prefill.* The uncached prompt tokens sent there and not answered by a first token yet, at the
  endpoint's learned speed, take `backlog_ms` or longer. Only streams count, because only they show
  when their prefill ended; an estimate alone never holds a request back.
- *Everything else* (KV memory, batch slots, work of other routers). The engine says how many wait
  there. By Little's law they wait on average waiting / admissions per second; where that is half a
  report interval or longer, the engine admits only what it can, and about one interval's worth of
  waiting requests is enough to keep it busy. The count is corrected between reports by what this
  router sent and what began since.

The engine keeps a queue in either case, and whatever starts there lets the next request go at once,
so that holding the others back costs no throughput. An engine that reports nothing is judged by
prefill alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from infctl.core.fleet import Column, Fleet, Load, Mask

_NEVER = float("inf")

_KEPT_WAITING = 2.0
"""Requests an engine may always have waiting: one to admit next, and one on its way."""


class Saturation:
    """Judges by the fleet's columns, of which it keeps `queued_ahead` and `queued_max`.

    Requests without a sign of having begun are `sent` − `started`; those that wait in the engine's
    queue are `queued_ahead` more than that: what was there at the last report without them.
    """

    def __init__(self, fleet: Fleet, backlog_ms: float) -> None:
        self._fleet = fleet
        self._backlog_ms = backlog_ms
        self._reported: dict[int, tuple[float, float]] = {}

    def join(self, slot: int) -> None:
        """An endpoint has not been heard of yet."""
        self._fleet.cells["queued_max"][slot] = _NEVER
        self._reported[slot] = (0.0, 0.0)

    def reported(self, slot: int, load: Load | None) -> None:
        """The engine said how many requests wait there, or says nothing any more."""
        cells = self._fleet.cells
        sent, started = cells["sent"][slot], cells["started"][slot]
        sent_before, started_before = self._reported[slot]
        self._reported[slot] = (sent, started)
        waiting = 0.0 if load is None or load.waiting is None else load.waiting
        cells["queued_ahead"][slot] = waiting - (sent - started)
        if waiting and waiting * 2.0 > sent - sent_before:
            # Halving at most: one snapshot of a burst must not throttle what is quick to drain.
            limit = max(_KEPT_WAITING, started - started_before, waiting * 0.5)
            cells["queued_max"][slot] = limit
        else:
            cells["queued_max"][slot] = _NEVER

    def full(self, slot: int, times: float = 1.0) -> bool:
        """Whether one more request would only wait at this endpoint; or, whether so many `times`
        as much waits there."""
        fleet, backlog_ms = self._fleet, self._backlog_ms * times
        cells = fleet.cells
        if (
            cells["free_at_ms"][slot] - fleet.now_ms >= backlog_ms
            and cells["pending_tokens"][slot] * cells["ms_per_token"][slot] >= backlog_ms
        ):
            return True
        limit = cells["queued_max"][slot] * times
        if limit == _NEVER:
            return False
        unstarted = cells["sent"][slot] - cells["started"][slot]
        return unstarted >= _KEPT_WAITING and cells["queued_ahead"][slot] + unstarted >= limit

    def room(self, penalty: Column) -> bool:
        """Whether any endpoint is not full, of those where `penalty` is 0 and not −inf."""
        return bool(np.where(self._full(1.0), -np.inf, penalty).max(initial=-np.inf) == 0.0)

    def full_slots(self, times: float) -> list[int]:
        """The slots that are `full`."""
        found: list[int] = np.flatnonzero(self._full(times)).tolist()
        return found

    def _full(self, times: float) -> Mask:
        fleet, backlog_ms = self._fleet, self._backlog_ms * times
        full = fleet.pending_tokens * fleet.ms_per_token >= backlog_ms
        full &= fleet.free_at_ms - fleet.now_ms >= backlog_ms
        unstarted = fleet.sent - fleet.started
        queued = fleet.queued_ahead + unstarted >= fleet.queued_max * times
        full |= queued & (unstarted >= _KEPT_WAITING)
        return full
