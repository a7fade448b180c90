"""`infctl calibrate`: the timing model of a running engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from infctl.calibrate.fit import Fit
    from infctl.calibrate.measure import Found

app = typer.Typer(help="Measure a running engine and fit its timing model.")

Url = Annotated[str, typer.Argument(help="Base URL of an engine that serves nobody else.")]
ModelName = Annotated[str, typer.Option(help="Model name; default: the server's first.")]
Out = Annotated[Path, typer.Option(help="The file to write.")]
Budget = Annotated[float, typer.Option(min=10, help="Measure for so many seconds at most.")]
Capacity = Annotated[
    int | None,
    typer.Option(min=1, help="KV cache in tokens, for an engine whose metrics do not tell."),
]


@app.command()
def calibrate(
    url: Url,
    model: ModelName = "",
    out: Out = Path("timing.yaml"),
    budget_s: Budget = 600.0,
    kv_capacity_tokens: Capacity = None,
) -> None:
    """Measure an engine and write a timing model that a profile can name.

    What is measured: prompts of several lengths, alone, behind cached prefixes and several at
    once; batches of several sizes and contexts; prompts while others decode. Exit code 5: the
    engine failed, and what was measured until then did not do (or did, but is not complete).
    """
    from infctl.calibrate.fit import Engine, fit
    from infctl.calibrate.measure import measure
    from infctl.calibrate.model_file import check, render
    from infctl.errors import TargetError
    from infctl.runs.result import check_folder, write_file

    check_folder(out.parent)
    with _telling() as tell:
        found = asyncio.run(measure(url, model, kv_capacity_tokens, budget_s, tell))
    _enough(found, url)
    fitted = fit(found.measured, Engine(found.kv_capacity_tokens, found.block_tokens))
    _show(fitted)
    check(fitted)
    what = f"{found.model} on {found.engine or 'an unknown engine'}, {_today()}"
    write_file(out, render(fitted, what).encode())
    print(f"Wrote {out}. In a profile: models: [{{name: {found.model}, timing: {out}}}]")
    if fitted.unknown:
        raise TargetError(
            f"not measured, so guessed: {', '.join(fitted.unknown)}; {found.trouble}", where=url
        )


def _enough(found: Found, url: str) -> None:
    """Raise TargetError where nothing can be fitted."""
    from infctl.calibrate.plan import GROUPS
    from infctl.errors import TargetError

    groups = {m.experiment.group for m in found.measured}
    missing = [group for group in GROUPS if group not in groups]
    if not {"lone", "decode"} <= groups:
        raise TargetError(
            f"{len(found.measured)} of {found.planned} experiments were measured, and without "
            f"{', '.join(missing)} there is no model: {found.trouble}",
            where=url,
            hint="Look at the engine's log; nothing was written.",
        )


def _show(fitted: Fit) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("experiments", title="How well the model explains them", title_justify="left")
    for head in ("figures", "median error", "p90"):
        table.add_column(head, justify="right")
    for each in fitted.errors:
        table.add_row(each.group, str(each.figures), f"{each.median:.1%}", f"{each.p90:.1%}")
    Console(highlight=False).print(table)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What happens now: a line that changes on a terminal, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("asking the engine") as status:
        yield status.update
