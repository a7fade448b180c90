"""Consistent hashing with bounded loads: a prompt's prefix has a home, unless that is too busy."""

from bisect import bisect_left
from functools import cached_property
from typing import ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from infctl.plugin import BLOCK_ENDS, Column, Fleet, Request

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_BEHIND = 2.0
"""Who is over the bound comes after all who are not; hashes lie between 0 and 1."""


class BoundedLoadHash(msgspec.Struct, frozen=True, dict=True):
    """The strategy `PrefixHash` of KubeAI (kubeai.org, "Load Balancing"; Mirrokni, Thorup and
    Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016).

    A prompt's first `prefix_bytes` are its key. Of the endpoints in the key's order, the first one
    takes the request whose open requests, this one counted in, are at most `load_factor` times
    the mean; the very first one, if there is none. Differences: KubeAI takes 100 characters of the
    first user message, while here the prompt's chained blocks are the key, system prompt and all,
    and the smallest has 256 bytes (a length between two blocks' ends means the later one; prompts
    without a whole block go to anyone within the bound). The order is by rendezvous hashing and
    not by a ring, so that shares are even without virtual nodes.
    """

    load_factor: float = 1.25
    prefix_bytes: int = BLOCK_ENDS[0]

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def __post_init__(self) -> None:
        if self.load_factor < 1:
            raise ValueError("load_factor must be at least 1")
        if not 1 <= self.prefix_bytes <= BLOCK_ENDS[-1]:
            raise ValueError(f"prefix_bytes must be between 1 and {BLOCK_ENDS[-1]}")

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        loads = fleet.inflight
        open_now = loads[fleet.serving(request.model)]
        bound = self.load_factor * (float(open_now.sum()) + 1.0) / max(len(open_now), 1)
        score: Column = np.where(loads + 1.0 > bound, -_BEHIND, 0.0)
        if request.blocks:
            score += self._order(request.blocks, fleet)
        return score

    def _order(self, blocks: list[int], fleet: Fleet) -> Column:
        """A number between 0 and 1 for each slot, drawn from the key and the endpoint's id."""
        key = blocks[min(bisect_left(BLOCK_ENDS, self.prefix_bytes), len(blocks) - 1)]
        drawn = self._names.of(fleet) ^ np.uint64(key)
        for _ in range(2):
            drawn = (drawn ^ (drawn >> _SHIFT)) * _MIX
        return drawn.astype(np.float64) * 2.0**-64

    @cached_property
    def _names(self) -> "_Names":
        return _Names()


class _Names:
    """Hashes of a fleet's endpoint ids, made anew when the fleet changes."""

    def __init__(self) -> None:
        self._made_for: tuple[Fleet, int] | None = None
        self._hashes: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def of(self, fleet: Fleet) -> NDArray[np.uint64]:
        """One per slot; free slots have one too."""
        made_for = fleet, fleet.version
        if self._made_for != made_for:
            self._made_for = made_for
            names = (e.id if e else "" for e in fleet.slots)
            self._hashes = np.array([xxh3_64_intdigest(n.encode()) for n in names], np.uint64)
        return self._hashes
