"""`infctl sim replay`: an event log's Director again, compared command by command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Logs = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Event logs of `infctl router --record`.")
]
Policy = Annotated[
    str | None,
    typer.Option(help="Count how often this policy would have chosen another endpoint."),
]


def replay(files: Logs, policy: Policy = None) -> None:
    """Feed an event log to the same Director again and compare what it does.

    Exit code 1 at the first command that is another one. With --policy, that one is asked at each
    choice too, in the state that the recorded choices led to."""
    from infctl.errors import EXIT_VERDICT_NO
    from infctl.sim import replay

    same = True
    for file in files:
        found = replay.replay(file, policy)
        same = same and found.difference is None
        for number, line in enumerate(replay.lines(found)):
            print(f"{file}: {line}" if number == 0 else f"  {line}")
    if not same:
        raise typer.Exit(EXIT_VERDICT_NO)
