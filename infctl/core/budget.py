"""A budget as a share of traffic: extra attempts must never amplify an outage."""

from __future__ import annotations


class Budget:
    """Every request earns `share` of an extra attempt; quiet times save up at most `saved_max`."""

    __slots__ = ("left", "saved_max", "share")

    def __init__(self, share: float, saved_max: float) -> None:
        self.share = share
        self.saved_max = saved_max
        self.left = saved_max

    def earn(self) -> None:
        """A request arrived."""
        left = self.left + self.share
        self.left = left if left < self.saved_max else self.saved_max

    def spend(self) -> bool:
        """Take one extra attempt; False when there is none left."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
