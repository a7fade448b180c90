"""`infctl plugin`: list, describe, new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List, describe and start plugins.", no_args_is_help=True)


@app.command("list")
def list_(
    seam: Annotated[
        str | None, typer.Argument(help="engine, filter, scorer, picker, handler, workload, …")
    ] = None,
) -> None:
    """List the plugins that are registered, own ones and third parties' alike."""
    from rich.console import Console
    from rich.table import Table

    from infctl.cli.plugin_info import catalogue

    table = Table(box=None, pad_edge=False)
    for name in ("SEAM", "NAME", "FROM", "WHAT IT DOES"):
        table.add_column(name, overflow="fold")
    for info in catalogue(seam):
        table.add_row(info.seam, info.name, info.distribution, info.summary)
    Console(markup=False, highlight=False).print(table)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="A plugin's name, or module:Class.")],
    seam: Annotated[
        str | None, typer.Option(help="Its seam, where several have a plugin of that name.")
    ] = None,
) -> None:
    """Tell what a plugin does and which parameters it takes."""
    from infctl.cli.plugin_info import description

    print(description(name, seam))


@app.command()
def new(
    seam: Annotated[str, typer.Argument(help="engine, filter, scorer, picker or workload.")],
    name: Annotated[str, typer.Argument(help="The plugin's name: lower-case, with dashes.")],
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Where to write it; default: ./NAME.")
    ] = None,
) -> None:
    """Write a small package with a working plugin and its test, to be installed with pip."""
    from infctl.cli.plugin_new import write_package

    target = directory or Path(name)
    for file in write_package(seam, name, target):
        print(file)
    print(f"\n  pip install -e {target}\n  pytest {target}\n  infctl plugin describe {name}")
