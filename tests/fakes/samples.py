"""Samples and results with known figures."""

import msgspec
import pytest

from infctl.runs.result import Result, build
from infctl.runs.spec import Measured, RunSpec, Sample, Tick
from infctl.runs.summary import summarise


class Make:
    """Samples and results with known figures."""

    def sample(self, i: int, **changes: object) -> Sample:
        values: dict[str, object] = {
            "sent_s": float(i),
            "late_ms": 1.0,
            "input_tokens": 1000,
            "ttft_ms": 100.0 + i,
            "tpot_ms": 10.0,
            "e2e_ms": 1000.0,
            "prompt_tokens": 1000,
            "cached_tokens": 250,
            "output_tokens": 50,
            "endpoint": f"e{i % 2}",
        } | changes
        return Sample(**values)

    def failed(self, i: int) -> Sample:
        blank = {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None, "prompt_tokens": None}
        return self.sample(i, error="HTTP 500", cached_tokens=None, output_tokens=0, **blank)

    def measured(self, samples: list[Sample], **changes: object) -> Measured:
        values: dict[str, object] = {
            "samples": samples,
            "ticks": [Tick(float(t), 50 * t, 1) for t in range(12)],
            "skipped": 0,
            "model": "m",
            "bytes_per_token": 4.0,
            "prefix_ceiling": 0.3,
            "notes": [],
            "lag_ms_p50": 0.0,
            "lag_ms_p99": 0.5,
            "cpu_share": 0.2,
            "wall_s": 1.0,
            "negative_ttft": 0,
            "connections": 2,
        } | changes
        return Measured(**values)

    def result(self) -> Result:
        spec = RunSpec(url="http://h", speed=10.0, policy="round-robin", limit=6)
        measured = self.measured([self.sample(i) for i in range(5)] + [self.failed(5)])
        names = ("round-robin", "b")
        runs = [summarise(measured, msgspec.structs.replace(spec, policy=n)) for n in names]
        return build(runs, spec, command="infctl bench http://h")


@pytest.fixture
def make() -> Make:
    return Make()
