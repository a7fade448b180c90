"""Requests in flight: how many, and what of them, each endpoint has.

A router may have several workers, and then what each has open is seen by all: a worker writes its
own into rows that only it writes, and reads the sum of the others'. The fleet's columns that say
what this router has open (`SHARED`) hold both, so scorers and filters need not know of workers;
between two looks at the others they are ahead by this worker's own events.

What an engine reports beyond that is foreign: sent by other routers, or past any router.

The others' prompts move `free_at_ms` as own ones do: more unanswered tokens than at the last look
join the queue, fewer mean that a prefill has ended just now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from infctl.core.fleet import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from infctl.core.commands import Command
    from infctl.core.director import Director
    from infctl.core.events import PeersReported, PrefixesReported
    from infctl.core.fleet import Cells, Fleet, Load
    from infctl.core.prefix import PrefixIndex

    Loads = NDArray[np.float64]
    """One row per column of SHARED, one cell per slot."""

    Publish = Callable[[int, list[int], bool], None]
    """(slot, blocks, whether the slot holds them now): a change of the prefix index."""


class Inflight:
    """Counts what is open at each slot, in the fleet's columns."""

    def __init__(self, fleet: Fleet, index: PrefixIndex) -> None:
        self._fleet = fleet
        self._index = index

    def own(self, slot: int) -> float:
        """Requests this process has open at a slot, those of other workers left out."""
        cells = self._fleet.cells
        return cells["inflight"][slot] - cells["foreign"][slot]

    def counted(self, slot: int, load: Load | None) -> None:
        """The engine said how many requests it has: what is beyond this router's is foreign."""
        cells = self._fleet.cells
        ours = cells["inflight"][slot] - cells["foreign"][slot]
        there = 0.0 if load is None else (load.running or 0.0) + (load.waiting or 0.0)
        cells["foreign"][slot] = foreign = max(there - ours, 0.0)
        cells["inflight"][slot] = ours + foreign

    def dispatched(
        self, slot: int, prompt_tokens: float, tokens: float, stream: bool, added: list[int]
    ) -> None:
        """A request goes to a slot: `tokens` of its prompt are not cached there, `added` are the
        blocks that will be. `prompt_tokens` is a whole number, so that sums are exact and what is
        added leaves nothing behind."""
        cells = self._fleet.cells
        cells["inflight"][slot] += 1.0
        cells["inflight_tokens"][slot] += prompt_tokens
        cells["sent"][slot] += 1.0
        if stream:
            cells["pending"][slot] += 1.0
            cells["pending_tokens"][slot] += tokens

    def left_queue(self, slot: int, tokens: float) -> None:
        """The first token of a stream is here, or will never be."""
        cells = self._fleet.cells
        cells["pending"][slot] -= 1.0
        left = cells["pending_tokens"][slot] - tokens
        cells["pending_tokens"][slot] = left if cells["pending"][slot] else 0.0

    def began(self, slot: int) -> None:
        """A request no longer waits in the engine's queue."""
        self._fleet.cells["started"][slot] += 1.0

    def released(self, slot: int, prompt_tokens: float) -> None:
        """A request is over; `prompt_tokens` as it was dispatched with."""
        cells = self._fleet.cells
        cells["inflight"][slot] -= 1.0
        cells["inflight_tokens"][slot] -= prompt_tokens

    def forgot(self, slot: int, blocks: list[int]) -> None:
        """What a failed request had added to the prefix index is taken back."""
        self._index.forget(slot, blocks)

    def left(self, slot: int) -> None:
        """The slot's endpoint left, and the fleet's columns are cleared."""

    def reported(self, event: PeersReported) -> list[Command]:
        """Other workers said what they have open."""
        return []

    def prefixes(self, event: PrefixesReported) -> list[Command]:
        """Other workers changed their prefix indices."""
        return []


class SharedInflight(Inflight):
    """The same for one worker of several. `own` is where it writes what it has open, for the others
    to read: one row per column of SHARED, a fixed number of slots; those beyond are not shared."""

    def __init__(self, director: Director, own: Loads, publish: Publish) -> None:
        super().__init__(director.fleet, director.index)
        self._latency = director.latency
        self._own = own
        self._publish = publish
        self._slots_max = own.shape[1]
        self._others_tokens = np.zeros(self._slots_max)
        cells: list[Cells] = [memoryview(row) for row in own]
        self._inflight, self._inflight_tokens, self._pending = cells[:3]
        self._pending_tokens, self._sent, self._started = cells[3:]

    def own(self, slot: int) -> float:
        return self._inflight[slot] if slot < self._slots_max else super().own(slot)

    def dispatched(
        self, slot: int, prompt_tokens: float, tokens: float, stream: bool, added: list[int]
    ) -> None:
        super().dispatched(slot, prompt_tokens, tokens, stream, added)
        if slot >= self._slots_max:
            return
        self._inflight[slot] += 1.0
        self._inflight_tokens[slot] += prompt_tokens
        self._sent[slot] += 1.0
        if stream:
            self._pending[slot] += 1.0
            self._pending_tokens[slot] += tokens
        if added:
            self._publish(slot, added, True)

    def left_queue(self, slot: int, tokens: float) -> None:
        super().left_queue(slot, tokens)
        if slot >= self._slots_max:
            return
        self._pending[slot] -= 1.0
        left = self._pending_tokens[slot] - tokens
        self._pending_tokens[slot] = left if self._pending[slot] else 0.0

    def began(self, slot: int) -> None:
        super().began(slot)
        if slot < self._slots_max:
            self._started[slot] += 1.0

    def released(self, slot: int, prompt_tokens: float) -> None:
        super().released(slot, prompt_tokens)
        if slot < self._slots_max:
            self._inflight[slot] -= 1.0
            self._inflight_tokens[slot] -= prompt_tokens

    def forgot(self, slot: int, blocks: list[int]) -> None:
        super().forgot(slot, blocks)
        if blocks and slot < self._slots_max:
            self._publish(slot, blocks, False)

    def left(self, slot: int) -> None:
        if slot < self._slots_max:
            self._own[:, slot] = 0.0
            self._others_tokens[slot] = 0.0

    def reported(self, event: PeersReported) -> list[Command]:
        loads = event.loads
        slots = loads.shape[1]
        np.add(self._own[:, :slots], loads, out=self._fleet.shared[:, :slots])
        self._fleet.inflight[:slots] += self._fleet.foreign[:slots]
        tokens, before = loads[_TOKENS], self._others_tokens[:slots]
        changes = tokens - before
        before[:] = tokens
        now_ms = self._fleet.now_ms
        for slot in np.flatnonzero(changes).tolist():
            if changes[slot] > 0.0:
                self._latency.dispatched(slot, float(changes[slot]), now_ms)
            else:
                self._latency.left_queue(slot, now_ms)
        return []

    def prefixes(self, event: PrefixesReported) -> list[Command]:
        for slot, blocks, held in event.news:
            if held:
                self._index.insert(slot, blocks[::-1])
            else:
                self._index.forget(slot, blocks)
        return []


_TOKENS = SHARED.index("pending_tokens")
