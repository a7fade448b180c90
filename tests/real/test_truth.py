"""The simulator tells the truth about a real engine (tests/real/truth.py has the whole table)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import truth

REQUESTS = 150
NOISE = 2.0
"""How much more than a quiet machine's error is allowed to one that runs other work."""


def test_a_calibrated_simulation_is_true(tmp_path: Path, monkeypatch) -> None:
    if "INFCTL_VLLM_PYTHON" not in os.environ:
        pytest.skip("INFCTL_VLLM_PYTHON does not name a Python with vLLM")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with truth.engine(tmp_path) as url:
        timing = truth.calibrated(url, tmp_path)
        rows = [row for row, _ in truth.compare(url, timing, tmp_path, (0.7,), 3, REQUESTS)]
    assert len(rows) == len(truth.FIGURES)
    for row in rows:
        assert abs(row.error) <= NOISE * max(truth.TOLERANCE, row.spread), row
