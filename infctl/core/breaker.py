"""Counts what requests say of one endpoint, and tells when it should get no more of them.

Counted are answers that came from a working engine and failures that are the endpoint's own: 5xx,
connections refused or reset, timeouts, streams broken off. Not counted is what a client did: a 4xx,
or leaving. Counts live in two windows, so that what was counted expires.
"""

from __future__ import annotations

STREAK_MAX = 5
"""Failures in a row, no good answer between them, that are enough."""

SHARE_MAX = 0.5
REQUESTS_MIN = 20
"""Or this share of at least so many requests."""


class Breaker:
    """Counts of one endpoint. `answered` is on every request's way and does only two additions."""

    __slots__ = ("_old_failed", "_old_ok", "failed", "ok", "streak")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.ok = self.failed = self.streak = 0
        self._old_ok = self._old_failed = 0

    def fail(self) -> None:
        """The endpoint failed a request."""
        self.failed += 1
        self.streak += 1

    def turn(self) -> None:
        """Begin a new window; what the one before the last counted is forgotten."""
        self._old_ok, self._old_failed = self.ok, self.failed
        self.ok = self.failed = 0
        if not self._old_failed:
            self.streak = 0

    @property
    def requests(self) -> int:
        """Requests counted in the windows kept."""
        return self.ok + self._old_ok + self.failures

    @property
    def failures(self) -> int:
        """Of these, failed by the endpoint."""
        return self.failed + self._old_failed

    def share(self) -> float:
        """The failed share, 0 before any request."""
        requests = self.requests
        return self.failures / requests if requests else 0.0

    def tripped(self) -> str | None:
        """Why the endpoint should be out, or None."""
        if self.streak >= STREAK_MAX:
            return f"failed {self.streak} requests in a row"
        if self.requests >= REQUESTS_MIN and self.share() >= SHARE_MAX:
            return f"failed {self.failures} of {self.requests} requests"
        return None
