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

    from infctl.cli.plugin_info import catalogue, summaries

    infos = catalogue(seam)
    table = Table(box=None, pad_edge=False)
    for name, values in (
        ("SEAM", [info.seam for info in infos]),
        ("NAME", [info.name for info in infos]),
        ("FROM", [info.distribution for info in infos]),
    ):
        table.add_column(name, no_wrap=True, min_width=max(map(len, values), default=0))
    table.add_column("WHAT IT DOES")  # wrapped at words
    for info, what in zip(infos, summaries(infos), strict=True):
        table.add_row(info.seam, info.name, info.distribution, what)
    Console(markup=False, highlight=False).print(table)


@app.command()
def describe(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SEAM] NAME", help="A plugin's name, or module:Class; its seam may precede it."
        ),
    ],
    seam: Annotated[
        str | None, typer.Option(help="Its seam, where several have a plugin of that name.")
    ] = None,
) -> None:
    """Tell what a plugin does and which parameters it takes."""
    from infctl.cli.plugin_info import description
    from infctl.errors import UsageError

    *before, name = words
    if len(before) + bool(seam) > 1:
        raise UsageError("name one plugin", hint="infctl plugin describe scorer queue-depth")
    print(description(name, before[0] if before else seam))


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
