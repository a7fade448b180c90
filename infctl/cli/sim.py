"""`infctl sim`: the same policies in virtual time, and what was recorded again."""

from __future__ import annotations

import typer

from infctl.cli.sim_replay import replay

app = typer.Typer(no_args_is_help=True, help="Replay what a router recorded.")
app.command("replay")(replay)


@app.callback()
def _group() -> None: ...
