"""The tables of a comparison."""

from __future__ import annotations

from infctl.sim.compare import SCHEMA_VERSION, Comparison, Standing
from infctl.sim.standings import render, render_narrow, verdict
from infctl.slo import Percentiles

from .test_arena import reading


def comparison() -> Comparison:
    def standing(policy: str, capacity: float, p90: float, tried: int = 1, **parameters: float):
        import msgspec

        found = [
            msgspec.structs.replace(reading(load, 0.9), ttft_ms=Percentiles(10.0, p90, 300.0))
            for load in (0.3, 0.9)
        ]
        return Standing(policy, parameters, tried, capacity, capacity - 0.5, found)

    return Comparison(
        schema_version=SCHEMA_VERSION,
        workload="/tmp/some/trace.jsonl",
        profile="p",
        units=8,
        requests=6000,
        requests_per_s=3.2,
        seed=0,
        saturation=2.0,
        loads=[0.3, 0.9],
        standings=[
            standing("predicted-ttft", 2.4, 80.0),
            standing("round-robin", 1.2, 200.0),
            standing("dynamo-cost", 2.0, 100.0, tried=5, overlap_weight=4.0),
            standing("llm-d-default", 1.8, 120.0, tried=9),
        ],
        notes=["A remark."],
    )


def test_the_verdict_is_against_the_best_other() -> None:
    first, *loads = verdict(comparison()).splitlines()
    assert first == (
        "predicted-ttft: capacity 2.40, 2.00× round-robin's and 1.20× that of dynamo-cost."
    )
    assert loads == ["- load 0.9: best in all four; TTFT p90 -20% against the best other."]


def test_what_is_not_best_is_named() -> None:
    found = comparison()
    own = found.standings[0]
    worse = [
        r.__class__(**{f: getattr(r, f) for f in r.__struct_fields__} | {"goodput": 0.5})
        for r in own.readings
    ]
    import msgspec

    changed = msgspec.structs.replace(own, readings=worse)
    found = msgspec.structs.replace(found, standings=[changed, *found.standings[1:]])
    assert "not best in goodput (" in verdict(found)


def test_tables_line_up_and_name_the_parameters() -> None:
    text = render(comparison())
    assert text.startswith("## trace.jsonl\n")
    assert "- dynamo-cost: overlap_weight 4 (of 5 sets)" in text
    assert "- llm-d-default: the published ones (of 9 sets)" in text
    assert text.endswith("A remark.")
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(row) for row in rows}) <= 1


def test_a_terminal_of_80_columns_is_enough() -> None:
    tables = [line for line in render_narrow(comparison()).splitlines() if line.startswith("|")]
    assert len(tables) > 10
    assert max(map(len, tables)) <= 80
