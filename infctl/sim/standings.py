"""A comparison as text: Markdown tables, which a terminal shows as well as a document."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from infctl.runs.figures import share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from infctl.sim.arena import Reading
    from infctl.sim.compare import Comparison, Standing

_BASELINE = "round-robin"


def render(found: Comparison) -> str:
    """Both readings of one workload, and what they come to: a section of a document."""
    parts = (*_head(found), _latencies(found), _hits(found), *found.notes)
    return "\n\n".join(filter(None, parts))


def render_narrow(found: Comparison) -> str:
    """The same for a terminal of 80 columns, without what does not fit."""
    return "\n\n".join(filter(None, (*_head(found), _narrow(found), *found.notes)))


def _head(found: Comparison) -> tuple[str, ...]:
    name = f"## {PurePath(found.workload).name}"
    return name, _setting(found), _capacities(found), _parameters(found), verdict(found)


def _setting(found: Comparison) -> str:
    return (
        f"{found.requests:,} requests, {found.requests_per_s:.2f} a second at rate scale 1, on "
        f"{found.units} units of `{found.profile}`, seed {found.seed}. Round-robin is saturated at "
        f"rate scale {found.saturation:.2f}; loads are shares of that."
    )


def _capacities(found: Comparison) -> str:
    base = _capacity(found, _BASELINE)
    rows = [
        (
            standing.policy,
            f"{standing.capacity:.2f}",
            f"{standing.capacity / base:.2f}" if base else "–",
            f"{standing.plain_capacity:.2f}",
        )
        for standing in found.standings
    ]
    return _table(("policy", "capacity", "× round-robin", "bare SLO"), rows, numbers=(1, 2, 3))


def _parameters(found: Comparison) -> str:
    """With which parameters each stands, where several were tried."""
    tried = [s for s in found.standings if s.tried > 1]
    return "\n".join(["Best parameters:", *map(_best, tried)]) if tried else ""


def _best(standing: Standing) -> str:
    said = ", ".join(f"{key} {value:g}" for key, value in standing.parameters.items())
    return f"- {standing.policy}: {said or 'the published ones'} (of {standing.tried} sets)"


def verdict(found: Comparison) -> str:
    """How the profile's own policy stands against the best of the others."""
    own, *others = found.standings
    rivals = [s for s in others if s.policy not in (own.policy, _BASELINE)]
    if not rivals:
        return f"{own.policy}: capacity {own.capacity:.2f}."
    best = max(rivals, key=lambda s: s.capacity)
    said = [
        f"{own.policy}: capacity {own.capacity:.2f}, "
        f"{_times(own.capacity, _capacity(found, _BASELINE))} round-robin's and "
        f"{_times(own.capacity, best.capacity)} that of {best.policy}."
    ]
    said += [_at_load(found, i) for i, load in enumerate(found.loads) if load >= 0.5]
    return "\n".join(said)


def _times(value: float, base: float) -> str:
    return f"{value / base:.2f}×" if base else "–"


_BEST: dict[str, Callable[[Reading], float]] = {
    "TTFT p50": lambda r: r.ttft_ms.p50 or float("inf"),
    "p90": lambda r: r.ttft_ms.p90 or float("inf"),
    "p99": lambda r: r.ttft_ms.p99 or float("inf"),
    "goodput": lambda r: -r.goodput,
}


def _at_load(found: Comparison, index: int) -> str:
    """At one load: which figures are best, and the best other where they are not."""
    own, *others = [(s.policy, s.readings[index]) for s in found.standings]
    beaten = []
    for label, value in _BEST.items():
        policy, reading = min(others, key=lambda each: value(each[1]))
        if value(reading) < value(own[1]):
            beaten.append(f"{label} ({policy})")
    p90, best = own[1].ttft_ms.p90 or 0.0, min(r.ttft_ms.p90 or 0.0 for _, r in others)
    change = f"TTFT p90 {p90 / best - 1:+.0%} against the best other" if best else ""
    where = f"not best in {', '.join(beaten)}" if beaten else "best in all four"
    return f"- load {found.loads[index]:g}: {where}; {change}."


def _capacity(found: Comparison, policy: str) -> float:
    return next((s.capacity for s in found.standings if s.policy == policy), 0.0)


def _latencies(found: Comparison) -> str:
    rows = []
    for index, load in enumerate(found.loads):
        for standing in found.standings:
            rows.append((f"{load:g}", standing.policy, *_latency(standing.readings[index])))
    heads = ("load", "policy", "TTFT p50", "p90", "p99 ms", "TPOT p50", "p90 ms", "goodput", "hits")
    return _table(heads, rows, numbers=range(2, 9))


def _narrow(found: Comparison) -> str:
    """Latencies in ms, but for the p90 of TPOT."""
    rows = []
    for index, load in enumerate(found.loads):
        for standing in found.standings:
            cells = _latency(standing.readings[index])
            rows.append((f"{load:g}", standing.policy, *cells[:4], *cells[5:]))
    heads = ("load", "policy", "p50", "p90", "p99", "TPOT", "good/s", "hits")
    return _table(heads, rows, numbers=range(2, 8))


def _latency(reading: Reading) -> tuple[str, ...]:
    ttft, tpot = reading.ttft_ms, reading.tpot_ms
    return (
        *(_number(value) for value in (ttft.p50, ttft.p90, ttft.p99)),
        *(_number(value, 1) for value in (tpot.p50, tpot.p90)),
        f"{reading.goodput:.2f}",
        share(reading.hit_rate),
    )


def _hits(found: Comparison) -> str:
    """Hit rates at the load nearest to 0.9."""
    index = min(range(len(found.loads)), key=lambda i: abs(found.loads[i] - 0.9))
    rows = []
    for standing in found.standings:
        reading = standing.readings[index]
        quartiles = [share(value) for value in reading.hit_rate_by_quartile]
        by_request = share(reading.hit_rate_by_request)
        rows.append((standing.policy, share(reading.hit_rate), by_request, *quartiles))
    heads = (
        f"hit rate at load {found.loads[index]:g}",
        *("by token", "by request", "shortest quarter", "2nd", "3rd", "longest"),
    )
    return _table(heads, rows, numbers=range(1, 7))


def _number(value: float | None, decimals: int = 0) -> str:
    return "–" if value is None else f"{value:,.{decimals}f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A Markdown table whose columns line up; those of `numbers` to the right."""
    rows = [tuple(heads), *map(tuple, rows)]
    right = set(numbers)
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = [
        "-" * (width + 1) + ":" if i in right else "-" * (width + 2)
        for i, width in enumerate(widths)
    ]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])
