"""The file that a profile names."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl import compose
from infctl.calibrate.fit import Engine, Fit, GroupError
from infctl.calibrate.model_file import check, render
from infctl.errors import UndecidedError
from infctl.timing import Decode, Prefill, TimingModel

TIMING = TimingModel(
    Prefill(1.23456, 0.05, 0.0), Decode(3.0, 0.2, 0.08, 1e-4), 4096, "", ttft_overhead_ms=4.0
)


def fitted(error: float = 0.02, unknown: tuple[str, ...] = ()) -> Fit:
    errors = [GroupError("lone", 7, error, error * 2)]
    return Fit(TIMING, Engine(4096, 32, 256, 2048), errors, list(unknown))


def test_a_profile_can_name_it(tmp_path: Path) -> None:
    path = tmp_path / "timing.yaml"
    path.write_text(render(fitted(), "tiny on vllm, 2026-12-01"))
    found = compose.timing(str(path))
    assert found.prefill.c0 == pytest.approx(1.235)
    assert found.kv_capacity_tokens == 4096
    assert found.source == "tiny on vllm, 2026-12-01; median error of a figure: lone 2.0%"
    assert "max_num_batched_tokens: 2048, block_size: 32" in path.read_text()


def test_guesses_are_called_guesses() -> None:
    assert "not measured, so guessed: c2, interference" in render(
        fitted(unknown=("c2", "interference")), "x"
    )


def test_a_model_that_explains_nothing_is_refused() -> None:
    check(fitted(0.2))
    with pytest.raises(UndecidedError, match="lone 40%"):
        check(fitted(0.4))
