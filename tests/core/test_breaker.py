"""What trips a breaker, and that what it counted expires."""

from __future__ import annotations

from infctl.core.breaker import REQUESTS_MIN, STREAK_MAX, Breaker


def counted(ok: int, failed: int) -> Breaker:
    breaker = Breaker()
    breaker.ok, breaker.failed = ok, failed
    return breaker


def test_failures_in_a_row_trip_it() -> None:
    breaker = Breaker()
    for _ in range(STREAK_MAX - 1):
        breaker.fail()
    assert breaker.tripped() is None
    breaker.fail()
    assert breaker.tripped() == f"failed {STREAK_MAX} requests in a row"


def test_a_share_trips_it_once_there_are_enough_requests() -> None:
    half = REQUESTS_MIN // 2
    assert counted(half - 1, half).tripped() is None
    assert counted(half, half).tripped() == f"failed {half} of {REQUESTS_MIN} requests"
    assert counted(half + 1, half).tripped() is None


def test_what_it_counted_expires_after_two_windows() -> None:
    breaker = counted(5, 0)
    for _ in range(STREAK_MAX):
        breaker.fail()
    breaker.turn()
    assert (breaker.requests, breaker.failures, breaker.streak) == (10, 5, 5)
    breaker.turn()
    assert (breaker.requests, breaker.failures, breaker.share()) == (0, 0, 0.0)
    breaker.turn()
    assert breaker.tripped() is None
