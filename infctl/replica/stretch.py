"""A stretch of an engine's time during which its batch does not change, in closed form.

Step j of a stretch takes first + j·ramp ms, so n steps take n·first + ramp·n(n−1)/2, and the step
under way at a given time is the root of a quadratic.
"""

from __future__ import annotations

from math import sqrt


class Stretch:
    """`length` steps from `start_ms`; `cut_at` makes it end at an earlier step boundary."""

    __slots__ = ("end_ms", "first_ms", "length", "ramp_ms", "start_ms")

    def __init__(self, start_ms: float, first_ms: float, ramp_ms: float, length: int) -> None:
        self.start_ms = start_ms
        self.first_ms = first_ms
        self.ramp_ms = ramp_ms
        self.length = length
        self.end_ms = self.boundary_ms(length)

    def boundary_ms(self, steps: int) -> float:
        """When the first `steps` steps are over."""
        return self.start_ms + steps * self.first_ms + self.ramp_ms * steps * (steps - 1) / 2

    def whole_steps(self, now_ms: float) -> int:
        """Steps over by `now_ms`."""
        if now_ms >= self.end_ms:
            return self.length
        elapsed_ms = now_ms - self.start_ms
        if elapsed_ms <= 0:
            return 0
        slope = self.first_ms - self.ramp_ms / 2
        # The form of the root that stays exact as the ramp goes to 0.
        steps = int(2 * elapsed_ms / (slope + sqrt(slope * slope + 2 * self.ramp_ms * elapsed_ms)))
        while self.boundary_ms(steps) > now_ms:
            steps -= 1
        while self.boundary_ms(steps + 1) <= now_ms:
            steps += 1
        return steps

    def cut_at(self, at_ms: float) -> None:
        """End at the first step boundary at or after `at_ms`, having run at least one step."""
        if at_ms >= self.end_ms:
            return
        steps = max(1, self.whole_steps(at_ms))
        if self.boundary_ms(steps) < at_ms:
            steps += 1
        self.length = steps
        self.end_ms = self.boundary_ms(steps)
