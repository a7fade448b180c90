"""The comparison table on a terminal: a row per figure, a column per policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from infctl.runs.figures import (
    FIGURES,
    Figure,
    milliseconds,
    run_name,
    simulated,
    workload_name,
)

if TYPE_CHECKING:
    from infctl.runs.result import Result, RunResult

_STYLES = {"good": "green", "bad": "red", "": "dim"}
_GROUP_ENDS = frozenset({"TTFT p99", "TPOT p99", "E2E p99", "Prefix hit rate"})


def comparison(result: Result) -> Table:
    """Figures of every run, and how each differs from the first run. Fits 80 columns with two."""
    table = Table(
        title=_title(result), title_justify="left", title_style="bold", caption=_caption(result)
    )
    table.caption_justify = "left"
    table.add_column("", no_wrap=True)
    base, *others = result.runs
    table.add_column(run_name(base), justify="right", overflow="fold")
    for run in others:
        table.add_column(run_name(run), justify="right", overflow="fold")
        table.add_column("change", justify="right", no_wrap=True)
    for figure in FIGURES:
        table.add_row(*_cells(figure, base, others), end_section=figure.label in _GROUP_ENDS)
    return table


def _cells(figure: Figure, base: RunResult, others: list[RunResult]) -> list[str | Text]:
    base_value = figure.value(base)
    cells: list[str | Text] = [figure.label, figure.text(base_value)]
    for run in others:
        value = figure.value(run)
        style = _STYLES[figure.verdict(value, base_value)]
        cells += [figure.text(value), Text(figure.change(value, base_value), style=style)]
    return cells


def _title(result: Result) -> str:
    pace = (
        f"concurrency {result.concurrency}"
        if result.concurrency
        else f"{result.rate_scale:g}× rate"
    )
    facts = [workload_name(result), pace, f"seed {result.seed}"]
    if not simulated(result):
        facts.append(f"{result.speed:g}× speed")
    return " · ".join(facts)


def _caption(result: Result) -> Text:
    bounds = (milliseconds(result.slo.ttft_ms), milliseconds(result.slo.tpot_ms))
    slo = "SLO: TTFT ≤ {}, TPOT ≤ {}.\n".format(*bounds)
    if simulated(result):
        return Text(f"{slo}Simulated: no network, no client.", style="dim")
    if result.client.passed:
        return Text(f"{slo}Client self-check passed.", style="dim")
    text = Text(slo, style="dim")
    text.append("Client self-check FAILED: " + "; ".join(result.client.reasons), style="bold red")
    return text
