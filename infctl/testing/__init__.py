"""What tests, of infctl and of its plugins, build on: `from infctl.testing import check_engine`.

The conformance checks are imported when asked for, because `infctl.testing.tiny_model` also runs
in engines' environments, which have nothing of infctl's.
"""

from __future__ import annotations

from typing import Any

__all__ = ["check_engine", "check_filter", "check_picker", "check_scorer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from infctl.testing import conformance

    return getattr(conformance, name)
