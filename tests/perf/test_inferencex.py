"""Shipped timing models stay true to what was measured elsewhere."""

from .inferencex import points

TPOT_ERROR_MAX = 0.05
TTFT_ERROR_MAX = 0.15

QUEUES = {("deepseek-v3-8xh200-tp8", 8192, 64)}
"""Where the measured engine queued prompts for a reason that the model lacks (docs/results.md)."""


def test_timing_models_reproduce_published_measurements() -> None:
    found = list(points())
    assert len(found) == 20
    for point in found:
        assert abs(point.tpot_error) <= TPOT_ERROR_MAX, point
        if (point.model, point.input_tokens, point.concurrency) not in QUEUES:
            assert abs(point.ttft_error) <= TTFT_ERROR_MAX, point
