"""docs/profile.md names everything the model has."""

from __future__ import annotations

from pydantic import BaseModel

from infctl.profile import model
from infctl.profile.reference import render


def test_every_key_of_every_part_has_a_row() -> None:
    rows = [line for line in render().splitlines() if line.startswith("| `")]
    for part in vars(model).values():
        if isinstance(part, type) and issubclass(part, BaseModel):
            for field in part.model_fields:
                assert any(row.startswith(f"| `{field}` |") for row in rows), field


def test_rows_tell_type_unit_bounds_and_default() -> None:
    text = render()
    assert "| `ttft_ms` | number, milliseconds, > 0 | `2000.0` |" in text
    assert '| `dialect` | `vllm` or `sglang` | `"vllm"` |' in text
    assert "| `name` | text | **needed** |" in text
    assert "## `routing.limits`" in text
    assert "## `models[]`" in text
