"""What each endpoint costs in milliseconds, learned online from what requests experienced.

Prefill: an endpoint computes prompts one after another (chunked prefill shares steps, but the
tokens queue up all the same), so the time from the moment it could begin a prompt to that prompt's
first token is overhead + slope × uncached tokens. Decode: the time per output token grows about
linearly with the requests in flight. Both lines are fitted by least squares with exponential
forgetting, per endpoint; an endpoint without samples of its own borrows its pool's.

The results live in the fleet's columns (`overhead_ms`, `ms_per_token`, `free_at_ms`, `step_ms`,
`step_ms_per_request`), so that a scorer reads them without a loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infctl.core.fleet import Fleet

_KEEP = 0.97
"""A sample loses half its weight after 23 later ones."""

_UNKNOWN_MS_PER_TOKEN = 0.05
_UNKNOWN_OVERHEAD_MS = 30.0


class Line:
    """y ≈ a + b·x by least squares with exponential forgetting; a and b are never negative."""

    __slots__ = ("a", "b", "samples", "w", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.w = self.x = self.y = self.xx = self.xy = 0.0
        self.a = self.b = 0.0
        self.samples = 0

    def add(self, x: float, y: float) -> None:
        """Take in one sample and refit."""
        keep = _KEEP
        self.w = self.w * keep + 1.0
        self.x = self.x * keep + x
        self.y = self.y * keep + y
        self.xx = self.xx * keep + x * x
        self.xy = self.xy * keep + x * y
        self.samples += 1
        self._fit()

    def _fit(self) -> None:
        spread = self.w * self.xx - self.x * self.x
        if self.samples < 3 or spread <= 1e-9 * self.w * self.xx:
            self.a, self.b = 0.0, self.y / self.x if self.x > 0 else 0.0
            return
        b = (self.w * self.xy - self.x * self.y) / spread
        a = (self.y - b * self.x) / self.w
        if a < 0.0:
            a, b = 0.0, self.xy / self.xx
        if b < 0.0:
            a, b = self.y / self.w, 0.0
        self.a, self.b = a, b


class Latency:
    """Keeps the fleet's latency columns up to date."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._prefill: dict[int, Line] = {}
        self._decode: dict[int, Line] = {}
        self._pools: dict[str, tuple[Line, Line]] = {}
        self._last_first_byte_ms: dict[int, float] = {}

    def join(self, slot: int, pool: str) -> None:
        """Start an endpoint from what its pool has learned."""
        self._prefill[slot], self._decode[slot] = Line(), Line()
        self._last_first_byte_ms[slot] = 0.0
        prefill, _ = self._pools.setdefault(pool, (Line(), Line()))
        self._publish(slot, pool)
        if not prefill.samples:
            self._fleet.cells["ms_per_token"][slot] = _UNKNOWN_MS_PER_TOKEN
            self._fleet.cells["overhead_ms"][slot] = _UNKNOWN_OVERHEAD_MS

    def dispatched(self, slot: int, uncached_tokens: float, now_ms: float) -> None:
        """A prompt joins the endpoint's prefill queue."""
        cells = self._fleet.cells
        free_at = cells["free_at_ms"]
        start = free_at[slot] if free_at[slot] > now_ms else now_ms
        free_at[slot] = start + uncached_tokens * cells["ms_per_token"][slot]

    def first_byte(
        self, slot: int, pool: str, uncached_tokens: float, dispatched_ms: float, now_ms: float
    ) -> None:
        """A prompt's prefill ended; learn from it, and re-anchor the queue behind it."""
        began = max(dispatched_ms, self._last_first_byte_ms[slot])
        self._last_first_byte_ms[slot] = now_ms
        took = now_ms - began
        self._prefill[slot].add(uncached_tokens, took)
        shared = self._pools[pool][0]
        shared.add(uncached_tokens, took)
        self._publish(slot, pool)
        if shared.samples == 1:
            self._spread(pool)
        self.left_queue(slot, now_ms)

    def left_queue(self, slot: int, now_ms: float) -> None:
        """Re-anchor the time at which the prefill queue should be empty."""
        cells = self._fleet.cells
        ahead = cells["pending_tokens"][slot] * cells["ms_per_token"][slot]
        cells["free_at_ms"][slot] = now_ms + ahead

    def decoded(self, slot: int, pool: str, inflight: float, ms_per_output_token: float) -> None:
        """A request ran to its end beside `inflight` others (itself included)."""
        self._decode[slot].add(inflight, ms_per_output_token)
        self._pools[pool][1].add(inflight, ms_per_output_token)
        self._publish(slot, pool)

    def _publish(self, slot: int, pool: str) -> None:
        shared_prefill, shared_decode = self._pools[pool]
        cells = self._fleet.cells
        prefill = self._prefill[slot]
        prefill = prefill if prefill.samples >= 3 else shared_prefill
        if prefill.samples:
            cells["overhead_ms"][slot] = prefill.a
            cells["ms_per_token"][slot] = prefill.b
        decode = self._decode[slot]
        decode = decode if decode.samples >= 3 else shared_decode
        cells["step_ms"][slot] = decode.a
        cells["step_ms_per_request"][slot] = decode.b

    def _spread(self, pool: str) -> None:
        for slot, endpoint in self._fleet:
            if endpoint.pool == pool:
                self._publish(slot, pool)
