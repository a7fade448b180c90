"""A progress bar for a run: on stderr, and only where somebody watches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infctl.runs.spec import Progress


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[Progress], None]]:
    """Shows the Progress it is given; yields the function to give it to."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None, detail="")

        def show(progress: Progress) -> None:
            errors = f", {progress.errors} failed" if progress.errors else ""
            detail = f"{progress.running} open{errors}"
            bar.update(task, total=progress.total, completed=progress.done, detail=detail)

        yield show
