"""What the client measures about itself while it runs: loop lag, CPU, tokens over time."""

from __future__ import annotations

import asyncio
import time
from time import perf_counter

from infctl.runs.spec import Tick

_STEP_S = 0.01
_TIMER_ERROR_S = 0.001  # uvloop keeps timers in whole ms: up to one of them is not lag
_TICK_EVERY = 25
_TICKS_MAX = 2400
_BUCKET_MS = 0.05
_BUCKETS = 40_000


class Gauge:
    """Samples the event loop every 10 ms. Times of ticks are engine seconds since `start`."""

    def __init__(self, speed: float) -> None:
        self.tokens = 0
        self.running = 0
        self.ticks: list[Tick] = []
        self._speed = speed
        self._lags = [0] * (_BUCKETS + 1)
        self._every = _TICK_EVERY
        self._steps = 0
        self._handle: asyncio.TimerHandle | None = None
        self._start_s = self._stop_s = self._cpu_start_s = self._cpu_s = 0.0

    def add_tokens(self, count: int) -> None:
        """Tokens have arrived."""
        self.tokens += count

    def start(self, start_s: float) -> None:
        """Begin sampling; `start_s` is perf_counter at the run's zero."""
        self._start_s = start_s
        self._cpu_start_s = time.process_time()
        self._again(perf_counter())

    def stop(self) -> None:
        """End sampling."""
        if self._handle is not None:
            self._handle.cancel()
        self._stop_s = perf_counter()
        self._cpu_s = time.process_time() - self._cpu_start_s
        self._tick(self._stop_s)

    @property
    def wall_s(self) -> float:
        """Seconds the run took on the wall."""
        return self._stop_s - self._start_s

    @property
    def cpu_share(self) -> float:
        """Cores this process kept busy during the run."""
        return self._cpu_s / self.wall_s if self.wall_s > 0 else 0.0

    def lag_ms(self, share: float) -> float:
        """A percentile of the loop's lag, in wall ms."""
        total = sum(self._lags)
        seen = 0
        for bucket, count in enumerate(self._lags):
            seen += count
            if total and seen >= share * total:
                return bucket * _BUCKET_MS
        return 0.0

    def _again(self, now_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(_STEP_S, self._sample, now_s + _STEP_S)

    def _sample(self, expected_s: float) -> None:
        now_s = perf_counter()
        lag_s = max(0.0, now_s - expected_s - _TIMER_ERROR_S)
        self._lags[min(round(lag_s * 1000 / _BUCKET_MS), _BUCKETS)] += 1
        self._steps += 1
        if self._steps % self._every == 0:
            self._tick(now_s)
        self._again(now_s)

    def _tick(self, now_s: float) -> None:
        at_s = (now_s - self._start_s) * self._speed
        self.ticks.append(Tick(round(at_s, 4), self.tokens, self.running))
        if len(self.ticks) > _TICKS_MAX:
            del self.ticks[1::2]
            self._every *= 2
