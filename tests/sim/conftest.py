"""Small fleets and workloads for the simulator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infctl.profile.model import Profile


@pytest.fixture
def fleet() -> Callable[..., Profile]:
    """A profile of emulated engines; keywords go into its routing."""

    def make(units: int = 2, args: dict[str, Any] | None = None, **routing: Any) -> Profile:
        return Profile.model_validate(
            {
                "metadata": {"name": "small"},
                "models": [{"name": "m", "timing": "qwen3-8b-bf16-1xh100"}],
                "engine": {"args": {"block_size": 16, **(args or {})}},
                "pools": [{"name": "p", "units": {"ready": units}}],
                "routing": routing,
            }
        )

    return make


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., str]:
    """A trace file of (at_s, segments, output tokens) rows."""

    def write(*rows: tuple[float, list[tuple[int, int]], int]) -> str:
        path = tmp_path / "trace.jsonl"
        lines = [
            json.dumps({"at_s": at, "segments": segments, "output_tokens": out})
            for at, segments, out in rows
        ]
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write
