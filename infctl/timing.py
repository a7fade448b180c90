"""The timing model: calibrated coefficients of one engine on its hardware."""

from __future__ import annotations

import math

import msgspec


class Prefill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """prefill(n, p) = c0 + c1·n + c2·n·(p + n/2) ms for n new tokens after a cached prefix of p."""

    c0: float
    c1: float
    c2: float


class Decode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """decode_step(B, S) = d0 + ds·√B + d1·B + dk·S ms for B sequences with S tokens of context."""

    d0: float
    ds: float
    d1: float
    dk: float


class TimingModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds and tokens throughout; seconds where the name says so.

    `interference` scales the prefill part of a mixed step. `ttft_overhead_ms` is what measured
    TTFT exceeds the modelled prefill by (tokenising, scheduling, first flush); it delays the
    first token without occupying the engine.
    """

    prefill: Prefill
    decode: Decode
    kv_capacity_tokens: int
    source: str
    kv_bytes_per_token: int = 0
    weights_bytes: float = 0.0
    gpus: int = 1
    ttft_overhead_ms: float = 0.0
    interference: float = 1.0
    cold_start_s: tuple[float, float] | None = None
    sleep_s: float | None = None
    wake_s: float | None = None

    def prefill_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """Time to compute `new_tokens` behind a cached prefix, alone on the engine."""
        c = self.prefill
        return c.c0 + c.c1 * new_tokens + c.c2 * new_tokens * (cached_tokens + new_tokens / 2)

    def decode_step_ms(self, batch: int, context_tokens: int) -> float:
        """Time of one decode step over `batch` sequences with `context_tokens` in all."""
        d = self.decode
        return d.d0 + d.ds * math.sqrt(batch) + d.d1 * batch + d.dk * context_tokens
