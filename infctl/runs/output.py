"""What a finished bench leaves: result.json and report.html, and a table or the JSON to read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from infctl.runs import report, result, table
from infctl.runs.figures import share

if TYPE_CHECKING:
    from pathlib import Path

    from infctl.runs.result import Result


def show(found: Result, out: Path, *, as_json: bool = False, target: float | None = None) -> None:
    """Write both files into `out` and print the result. Raises MachineError.

    `target`: the share of requests that should be within the SLO.
    """
    result.write(found, out / "result.json")
    result.write_file(out / "report.html", report.render(found).encode())
    if as_json:
        sys.stdout.write(result.encode(found).decode())
        sys.stdout.flush()
        return
    show_table(found, target)
    print(f"Wrote {out / 'report.html'} and {out / 'result.json'}", flush=True)


def show_table(found: Result, target: float | None = None) -> None:
    """Print the comparison, the verdicts against a target, and the notes."""
    from rich.console import Console

    Console(highlight=False).print(table.comparison(found))
    for run in found.runs if target is not None else []:
        verdict = "met" if run.good_share >= (target or 0.0) else "missed"
        said = f"{share(run.good_share)} within the SLO, target {share(target)}: {verdict}"
        print(f"{run.policy}: {said}")
    for note in found.notes:
        print(f"Note: {note}")
