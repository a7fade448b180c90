"""How far predictions were off: what was expected of decisions against what came true."""

from __future__ import annotations

from infctl.core.histogram import SECONDS, TOKENS, Histogram


class Error:
    """Errors of one kind of prediction by direction, as sizes: a histogram takes no negative
    numbers. `above`: more came true than was expected; `below`: less, or exactly as much."""

    __slots__ = ("above", "below")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.above = Histogram(bounds)
        self.below = Histogram(bounds)

    def add(self, expected: float, actual: float) -> None:
        """Take in one prediction and what came true."""
        if actual > expected:
            self.above.add(actual - expected)
        else:
            self.below.add(expected - actual)


class Accuracy:
    """Of one pool: of the time to first token (s), and of the prompt tokens served from cache."""

    __slots__ = ("cached_tokens", "ttft_s")

    def __init__(self) -> None:
        self.ttft_s = Error(SECONDS)
        self.cached_tokens = Error(TOKENS)
