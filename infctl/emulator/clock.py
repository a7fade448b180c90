"""Engine time: wall time at a rate that may change, or stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class EngineClock:
    """Engine ms since the start, at `rate` engine seconds a wall second (0: stopped)."""

    def __init__(self, wall_s: Callable[[], float], rate: float) -> None:
        self._wall_s = wall_s
        self._base_s = wall_s()
        self._base_ms = 0.0
        self.rate = rate

    def now_ms(self) -> float:
        """Engine time."""
        return self._base_ms + (self._wall_s() - self._base_s) * self.rate * 1000

    def set_rate(self, rate: float) -> None:
        """From now on time passes at another rate."""
        self._base_ms = self.now_ms()
        self._base_s = self._wall_s()
        self.rate = rate

    def wall_s(self, at_ms: float) -> float | None:
        """When the wall clock shows an engine time; None while time stands still."""
        if not self.rate:
            return None
        return self._base_s + (at_ms - self._base_ms) / (self.rate * 1000)
