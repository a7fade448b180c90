"""A state folder of the test's own, the fake engine, and nothing left running."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from infctl.actuator import DesiredUnit
from infctl.engine import UnitSpec

FAKES = Path(__file__).parents[1] / "fakes"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(FAKES))
    yield
    left = [p for p in psutil.Process().children(recursive=True) if p.is_running()]
    for process in left:
        process.kill()
    assert left == []


@pytest.fixture
def desired() -> Callable[..., DesiredUnit]:
    """A unit of the fake engine; keywords are the server's options."""

    def make(name: str = "a-0", python: str = sys.executable, **args: Any) -> DesiredUnit:
        spec = UnitSpec(
            unit=name, model="m", model_path="m", host="127.0.0.1", port=0, args=args, python=python
        )
        return DesiredUnit(
            name=name,
            pool="a",
            cluster="local",
            role="unified",
            engine="fake_engine:Fake",
            models=("m",),
            revision=f"r-{hash(msgspec.json.encode(args))}",
            spec=spec,
        )

    return make
