"""Timing models against published measurements of the same engines.

    python tests/perf/inferencex.py

InferenceX (SemiAnalysis, Apache-2.0), 8 x H200 with tensor parallel 8, April 2026: TTFT and TPOT in
ms at a concurrency, ten prompts for each, of 0.8 to 1 times the nominal length, and so the answers.
The same in the simulator, as a closed loop on one unit: mean TTFT, the first wave of prompts
included, and median TPOT. Which statistic the published figures are is not said.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean, median

import msgspec

from infctl.profile.model import Profile
from infctl.runs.spec import RunSpec
from infctl.sim.run import simulate

OUTPUT_TOKENS = 1024
CONCURRENCIES = (4, 8, 16, 32, 64)
POINTS: dict[tuple[str, int], tuple[tuple[float, float], ...]] = {
    ("deepseek-v3-8xh200-tp8", 1024): (
        (260, 10.3), (245, 12.5), (286, 16.6), (338, 23.3), (419, 33.0),
    ),
    ("deepseek-v3-8xh200-tp8", 8192): (
        (447, 11.3), (503, 14.4), (700, 20.4), (994, 32.0), (2279, 50.2),
    ),
    ("kimi-k2.5-int4-8xh200-tp8", 1024): (
        (149, 10.4), (166, 12.5), (196, 16.4), (257, 22.6), (368, 31.1),
    ),
    ("kimi-k2.5-int4-8xh200-tp8", 8192): (
        (512, 11.8), (673, 15.0), (847, 21.9), (1246, 35.0), (1958, 59.8),
    ),
}  # fmt: skip
"""(timing model, prompt tokens): (TTFT, TPOT) in ms at each of CONCURRENCIES."""


class Point(msgspec.Struct, frozen=True):
    """One measurement and its simulation, in ms."""

    model: str
    input_tokens: int
    concurrency: int
    ttft_ms: float
    simulated_ttft_ms: float
    tpot_ms: float
    simulated_tpot_ms: float

    @property
    def ttft_error(self) -> float:
        """How far off, as a share."""
        return self.simulated_ttft_ms / self.ttft_ms - 1.0

    @property
    def tpot_error(self) -> float:
        """How far off, as a share."""
        return self.simulated_tpot_ms / self.tpot_ms - 1.0


def points() -> Iterator[Point]:
    """Every point."""
    for (model, input_tokens), measured in POINTS.items():
        for concurrency, (ttft_ms, tpot_ms) in zip(CONCURRENCIES, measured, strict=True):
            found = _simulated(model, input_tokens, concurrency)
            yield Point(model, input_tokens, concurrency, ttft_ms, found[0], tpot_ms, found[1])


def _simulated(model: str, input_tokens: int, concurrency: int) -> tuple[float, float]:
    profile = Profile.model_validate(
        {
            "metadata": {"name": "inferencex"},
            "models": [{"name": "m", "timing": model}],
            "engine": {"args": {"max_num_batched_tokens": 8192}},
            "pools": [{"name": "p", "units": {"ready": 1}}],
        }
    )
    spec = RunSpec(
        url="",
        workload="random",
        parameters={"input_tokens": input_tokens, "output_tokens": OUTPUT_TOKENS, "spread": 0.2},
        limit=concurrency * 10,
        concurrency=concurrency,
    )
    samples = simulate(profile, spec).samples
    ttft_ms = mean(s.ttft_ms for s in samples if s.ttft_ms is not None)
    return ttft_ms, median(s.tpot_ms for s in samples if s.tpot_ms is not None)


def main() -> None:
    """Print the table."""
    print("| model | prompt | concurrency | TTFT | simulated | | TPOT | simulated | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for p in points():
        print(
            f"| {p.model} | {p.input_tokens} | {p.concurrency} | {p.ttft_ms:,.0f} ms | "
            f"{p.simulated_ttft_ms:,.0f} | {p.ttft_error:+.0%} | {p.tpot_ms:.1f} ms | "
            f"{p.simulated_tpot_ms:.1f} | {p.tpot_error:+.1%} |"
        )


if __name__ == "__main__":
    main()
