"""The small streaming server of tests/fakes."""

from fakes.streaming import server

__all__ = ["server"]
