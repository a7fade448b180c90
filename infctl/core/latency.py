"""What each endpoint costs in milliseconds, learned online from what requests experienced.

Prefill: an endpoint computes prompts one after another (chunked prefill shares steps, but the
tokens queue up all the same), so the time from the moment it could begin a prompt to that prompt's
first token is overhead + slope × uncached tokens. Decode: the time per output token grows about
linearly with the requests in flight. Both lines are fitted by least squares with exponential
forgetting, per endpoint, leaning on what its pool has learned while its own samples are few.

The results live in the fleet's columns (`overhead_ms`, `ms_per_token`, `free_at_ms`, `step_ms`,
`step_ms_per_request`), so that a scorer reads them without a loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infctl.core.fleet import Fleet

_KEEP = 0.97
"""A sample loses half its weight after 23 later ones."""

_PRIOR_SAMPLES = 25.0
"""How many of an endpoint's own samples its pool's experience is worth. An endpoint remembers 33:
one that is slower than its peers is seen, but noise makes no favourite of one that is not."""

_STEP_TOKENS_PER_REQUEST = 10.0
"""Until decode has been seen: one more request in a batch makes a step about as much longer as
computing so many prompt tokens (5 to 30 in the shipped timing models, at batch 16 and 12k tokens
of context)."""

_OVERHEAD_TOKENS = 2000.0
_STEP_REQUESTS = 20.0
"""Line offsets: a prefill's fixed cost in tokens (1,000 to 7,000 in the shipped timing models) and
a decode step's in requests (15 to 60)."""

_OFFSET_TIMES = 10.0
_UNKNOWN_MS_PER_TOKEN = 0.05
_UNKNOWN_OVERHEAD_MS = 30.0

_PATIENCE_MS = 1000.0
_PATIENCE_TOKENS = 10.0
_UNKNOWN_TOKEN_MS = 50.0
"""Silence that is a reason to ask: a second and ten times what a token takes there. Requests have
no say in it one by one: an engine gives each of its streams a token a step, so it is the silence of
all of them that tells."""


class Line:
    """y ≈ a + b·x by least squares with exponential forgetting; a and b are never negative.

    While the samples do not tell a from b (too few, or all at one x), a is taken to be worth
    `offset` units of x, whatever the scale of y. It is never believed to be worth more than ten
    times that: a load that seems to cost nothing would draw every request to one endpoint.
    """

    __slots__ = ("offset", "samples", "w", "x", "xx", "xy", "y")

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset
        self.w = self.x = self.y = self.xx = self.xy = 0.0
        self.samples = 0

    def add(self, x: float, y: float) -> None:
        """Take in one sample."""
        keep = _KEEP
        self.w = self.w * keep + 1.0
        self.x = self.x * keep + x
        self.y = self.y * keep + y
        self.xx = self.xx * keep + x * x
        self.xy = self.xy * keep + x * y
        self.samples += 1

    def fit(self, prior: Line | None = None) -> tuple[float, float]:
        """(a, b), with another line's samples counted in as a few of this one's."""
        w, x, y, xx, xy = self.w, self.x, self.y, self.xx, self.xy
        samples = self.samples
        if prior is not None and prior.w:
            k = _PRIOR_SAMPLES / prior.w
            w, x, y = w + k * prior.w, x + k * prior.x, y + k * prior.y
            xx, xy = xx + k * prior.xx, xy + k * prior.xy
            samples = prior.samples
        spread = w * xx - x * x
        if samples < 3 or spread <= 1e-9 * w * xx:
            reach = x + self.offset * w
            b = y / reach if reach > 0 else 0.0
            return self.offset * b, b
        b = (w * xy - x * y) / spread
        if b * x > y:
            return 0.0, xy / xx
        b = max(b, y / (x + _OFFSET_TIMES * self.offset * w)) if self.offset else max(b, 0.0)
        return (y - b * x) / w, b


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
        self._prefill[slot] = Line(_OVERHEAD_TOKENS)
        self._decode[slot] = Line(_STEP_REQUESTS)
        self._last_first_byte_ms[slot] = 0.0
        self._pools.setdefault(pool, (Line(_OVERHEAD_TOKENS), Line(_STEP_REQUESTS)))
        self._fleet.cells["ms_per_token"][slot] = _UNKNOWN_MS_PER_TOKEN
        self._fleet.cells["overhead_ms"][slot] = _UNKNOWN_OVERHEAD_MS
        self._publish(slot, pool)

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

    def silent_ms(self, slot: int, heard_ms: float, now_ms: float) -> float:
        """How long an endpoint has been silent beyond what its queued prefills explain."""
        since = max(heard_ms, min(self._fleet.cells["free_at_ms"][slot], now_ms))
        return now_ms - since

    def patience_ms(self, slot: int) -> float:
        """How long an endpoint with streams may be silent before that is odd."""
        cells = self._fleet.cells
        token_ms = cells["step_ms"][slot]
        token_ms += cells["step_ms_per_request"][slot] * cells["inflight"][slot]
        if not cells["step_ms"][slot]:
            token_ms = max(token_ms, _UNKNOWN_TOKEN_MS)
        return _PATIENCE_MS + _PATIENCE_TOKENS * token_ms

    def _publish(self, slot: int, pool: str) -> None:
        shared_prefill, shared_decode = self._pools[pool]
        cells = self._fleet.cells
        if shared_prefill.samples:
            cells["overhead_ms"][slot], cells["ms_per_token"][slot] = self._prefill[slot].fit(
                shared_prefill
            )
        if shared_decode.samples:
            cells["step_ms"][slot], cells["step_ms_per_request"][slot] = self._decode[slot].fit(
                shared_decode
            )
        else:
            per_token = cells["ms_per_token"][slot]
            cells["step_ms_per_request"][slot] = per_token * _STEP_TOKENS_PER_REQUEST

        cells["fixed_ms"][slot] = (
            cells["overhead_ms"][slot] + cells["step_ms"][slot] + cells["rtt_ms"][slot]
        )

    def _spread(self, pool: str) -> None:
        for slot, endpoint in self._fleet:
            if endpoint.pool == pool:
                self._publish(slot, pool)
