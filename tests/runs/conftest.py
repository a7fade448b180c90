"""Samples and results with known figures, of tests/fakes."""

from fakes.samples import make

__all__ = ["make"]
