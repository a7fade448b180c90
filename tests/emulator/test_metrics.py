"""The text of /metrics, read back by Prometheus' own parser."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infctl.emulator.metrics import Histogram, Metrics, Snapshot
from infctl.replica import ReplicaLoad

LOAD = ReplicaLoad(3, 2, 0.25, 5000, 700, 1600, 1)
NOW = Snapshot(LOAD, False, 0, 12.5)


def test_a_histogram_counts_up() -> None:
    histogram = Histogram("h", 'a="b"', (0.1, 1.0))
    for value, count in ((0.1, 1), (0.5, 3), (7.0, 1)):
        histogram.observe(value, count)
    assert histogram.lines() == [
        "# TYPE h histogram",
        'h_bucket{a="b",le="0.1"} 1.0',
        'h_bucket{a="b",le="1.0"} 4.0',
        'h_bucket{a="b",le="+Inf"} 5.0',
        'h_sum{a="b"} 8.6',
        'h_count{a="b"} 5.0',
    ]


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (
            "vllm",
            {
                "vllm:num_requests_running": 3,
                "vllm:num_requests_waiting": 2,
                "vllm:kv_cache_usage_perc": 0.25,
                "vllm:prompt_tokens_total": 5000,
                "vllm:time_to_first_token_seconds_count": 1,
            },
        ),
        (
            "sglang",
            {
                "sglang:num_running_reqs": 3,
                "sglang:num_queue_reqs": 2,
                "sglang:token_usage": 0.25,
                "sglang:cache_hit_rate": 0.32,
                "sglang:gen_throughput": 12.5,
                "sglang:time_to_first_token_seconds_count": 1,
            },
        ),
    ],
)
def test_prometheus_reads_it(dialect: str, expected: dict[str, float]) -> None:
    metrics = Metrics(dialect, 'odd "name"\\', 16, 100)
    metrics.ttft.observe(0.3)
    values = {}
    for family in text_string_to_metric_families(metrics.render(NOW).decode()):
        for sample in family.samples:
            assert sample.labels["model_name"] == 'odd "name"\\'
            values[sample.name] = sample.value
    assert {name: values[name] for name in expected} == expected


def test_rendering_is_cheap() -> None:
    metrics = Metrics("sglang", "m", 16, 100)
    took = []
    for _ in range(20):
        began = time.process_time()
        metrics.render(NOW)
        took.append(time.process_time() - began)
    assert min(took) < 0.0005
