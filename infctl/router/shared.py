"""This worker among the others of its router: loads, news of prefixes and use of keys are shared.

A worker looks at what the others have open right before it chooses for an arrival, unless it has
looked in the last milliseconds. A burst spreads all the same: each worker spreads its part.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from infctl.core.events import PeersReported, PrefixesReported
from infctl.core.fleet import SHARED
from infctl.core.inflight import SharedInflight
from infctl.router import board, ring
from infctl.router.board import WORD, Board
from infctl.router.ring import Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.core.director import Director
    from infctl.core.events import Event
    from infctl.core.fleet import Endpoint

SLOTS = 16_384
"""Endpoints whose load is shared; those beyond are routed on each worker's own requests."""

KEYS = 16_384
KEY_COLUMNS = 3

_LOOK_S = 0.01
_LOOK_S_PER_SLOT = 4e-6
"""How old the others' loads may be at an arrival: a look costs some 10 us, and 0.02 a slot."""

_LOADS = board.words_of(len(SHARED), SLOTS)
_KEYS = board.words_of(KEY_COLUMNS, KEYS)
_PART = _LOADS + _KEYS + ring.words_of()


def create(workers: int) -> int:
    """Zeroed memory for so many workers; returns its descriptor. Pages that nobody touches take
    no room. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("infctl-workers")
    else:
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(descriptor, workers * _PART * WORD)
    return descriptor


def clear(descriptor: int, worker: int, workers: int) -> None:
    """Zero what a worker that ended had open. Its ring stays: its successor goes on there."""
    with mmap.mmap(descriptor, workers * _PART * WORD) as memory:
        board.clear(memory, worker * _PART, len(SHARED), SLOTS)
        board.clear(memory, worker * _PART + _LOADS, KEY_COLUMNS, KEYS)


class Peers:
    """The other workers, as seen by the one with the number `worker` of `workers`."""

    def __init__(self, director: Director, descriptor: int, worker: int, workers: int) -> None:
        memory = mmap.mmap(descriptor, workers * _PART * WORD)
        starts = [number * _PART for number in range(workers)]
        self._loads = Board(memory, starts, len(SHARED), SLOTS, worker)
        self.keys = Board(memory, [s + _LOADS for s in starts], KEY_COLUMNS, KEYS, worker)
        rings = [start + _LOADS + _KEYS for start in starts]
        self._readers = [Reader(memory, r) for n, r in enumerate(rings) if n != worker]
        self._fleet = director.fleet
        self._fleet_version = -1
        self._known: list[tuple[Endpoint | None, int]] = []
        self._next = 0.0
        self._writer = Writer(memory, rings[worker])
        director.inflight = SharedInflight(director, self._loads.own, self._writer.publish)

    def look(self, now: float, handle: Callable[[Event], object]) -> None:
        """Take in what the others have open and have learned, unless the last look was just now."""
        if self._fleet.version != self._fleet_version:
            self._identify()
        elif now < self._next:
            return
        self._next = now + _LOOK_S + len(self._known) * _LOOK_S_PER_SLOT
        self._writer.flush()
        handle(PeersReported(self._loads.sum()))
        news = [
            (own, blocks, held)
            for other, reader in zip(self._loads.others, self._readers, strict=True)
            for slot, blocks, held in reader.records()
            for own in (other.own_slot.get(slot),)
            if own is not None
        ]
        if news:
            handle(PrefixesReported(news))

    def _identify(self) -> None:
        """Tell the others which endpoints this worker's slots are."""
        self._fleet_version = self._fleet.version
        known = self._known + [(None, 0)] * (len(self._fleet) - len(self._known))
        self._known = [
            pair if pair[0] is endpoint else (endpoint, identity(endpoint))
            for endpoint, pair in zip(self._fleet.slots, known[:SLOTS], strict=False)
        ]
        self._loads.identify([name for _, name in self._known])


def identity(endpoint: Endpoint | None) -> int:
    """Tells endpoints apart in every worker, by who they are and not by URL; 0 for none."""
    if endpoint is None:
        return 0
    words = (endpoint.unit, endpoint.generation, endpoint.revision, endpoint.role, endpoint.rank)
    return xxh3_64_intdigest("\0".join(map(str, words)).encode()) or 1
