"""Routers that know nothing of each other send what belongs together to one endpoint.

Each of several routers over the same endpoints sees a part of the requests, so the prefix index of
one misses what others have put into the endpoints' caches. They agree without talking: every prompt
has a *home*, drawn by rendezvous hashing from the first of its blocks that is not common. (Common
is what half an endpoint's fair share of the requests starts with: a system prompt must not draw all
of them to one endpoint.) A router that does not know where the rest of a
prompt is cached expects it at the home, with the probability that another router has dealt with it:
the share of the engines' load that is not its own. A router alone sees no such load and expects
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from infctl.core.fleet import Column, Fleet
    from infctl.core.request import Request
    from infctl.core.scheduling import Pipeline

_KEEP = 0.999
"""A report loses half its weight after 700 later ones: a minute and a half of eight endpoints."""

_SHARE_MIN = 0.1
"""Below, it may be nothing but reports that are older than what this router has seen since."""

_TURNS = 1.2
"""A prompt's prefix is often what several requests had, any of which another router may have dealt
with. Chosen, as the rest, on the Mooncake conversation trace, where 1.0 to 1.35 are alike."""

_WINDOW = 4096
"""Requests after which what they started with counts half."""

_RARE = 4
"""So few say nothing about what is common."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


class Homes:
    """Learns how much other routers do, and says what they will have left in caches."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen: dict[int, int] = {}
        self._requests = 0
        self._all = 0.0
        self._others = 0.0
        self._version = -1
        self._seeds: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    @property
    def share(self) -> float:
        """The share of the engines' load that other routers have sent, 0 where it is little."""
        share = self._others / self._all if self._all else 0.0
        return share if share > _SHARE_MIN else 0.0

    def reported(self, slot: int) -> None:
        """An engine said how many requests it has."""
        cells = self._fleet.cells
        foreign = cells["foreign"][slot]
        self._all = self._all * _KEEP + cells["running"][slot] + cells["waiting"][slot]
        self._others = self._others * _KEEP + foreign

    def expect(
        self, request: Request, cached: Column, pipeline: Pipeline, *, count: bool = True
    ) -> Column:
        """Tokens of the prompt to expect in each slot's cache, where this router knows of `cached`.
        For choices alone: queues and what is learned go by what is known. `count` False: nothing
        comes of it, so what is common is not to learn from it."""
        likely = min(self.share * _TURNS, 1.0)
        if not likely or not request.blocks:
            return cached
        penalty = pipeline.allowed(request, self._fleet).penalty
        home = self._home(self._key(request.blocks, penalty, count), penalty)
        expected = cached.copy()
        expected[home] += likely * max(request.prompt_tokens - cached[home], 0.0)
        return expected

    def _key(self, blocks: list[int], penalty: Column, count: bool) -> int:
        """The first block that is not common; counts those up to it if asked to."""
        seen = self._seen
        self._requests += count
        if self._requests >= _WINDOW:
            self._requests //= 2
            seen = self._seen = {b: n // 2 for b, n in seen.items() if n > 1}
        limit = max(_RARE, self._requests // (2 * max(int((penalty == 0.0).sum()), 1)))
        for block in blocks:
            times = seen.get(block, 0) + 1
            if count:
                seen[block] = times
            if times <= limit:
                return block
        return blocks[-1]

    def _home(self, key: int, penalty: Column) -> int:
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            names = (e.id if e else "" for e in self._fleet.slots)
            self._seeds = np.array([xxh3_64_intdigest(n.encode()) for n in names], np.uint64)
        drawn = self._seeds ^ np.uint64(key)
        drawn = (drawn ^ (drawn >> _SHIFT)) * _MIX
        drawn = (drawn ^ (drawn >> _SHIFT)) * _MIX
        return int((drawn.astype(np.float64) + penalty).argmax())
