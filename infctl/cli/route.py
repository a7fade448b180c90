"""`infctl route`: where requests go."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from infctl.compose import Route

app = typer.Typer(help="Show where requests go.", no_args_is_help=True)


class Output(StrEnum):
    """How to print."""

    table = "table"
    json = "json"
    yaml = "yaml"


@app.callback()
def group() -> None:
    """Show where requests go."""


@app.command()
def table(
    profile: Annotated[str, typer.Argument(help="A shipped profile, or a file.")],
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.table,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override a profile key: a.b=value.")
    ] = None,
) -> None:
    """Compute the route table of PROFILE: model x bucket -> pools -> endpoints with weights."""
    import msgspec

    from infctl.compose import route_table
    from infctl.profile.load import load

    routes = route_table(load(profile, sets or [], os.environ))
    if output is Output.json:
        typer.echo(msgspec.json.format(msgspec.json.encode(routes)).decode())
    elif output is Output.yaml:
        typer.echo(msgspec.yaml.encode(routes).decode(), nl=False)
    else:
        _print(routes)


def _print(routes: list[Route]) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    for name in ("MODEL", "BUCKET", "POOL", "CLUSTER", "WEIGHT", "ENDPOINTS"):
        grid.add_column(name, justify="right" if name == "WEIGHT" else "left", overflow="fold")
    for route in routes:
        names = ", ".join((route.model, *route.aliases))
        cluster = f"{route.cluster} +{route.rtt_ms:g} ms" if route.rtt_ms else route.cluster
        weight = f"{route.weight:.0%}"
        grid.add_row(names, route.bucket, route.pool, cluster, weight, _span(list(route.endpoints)))
    Console().print(grid)


def _span(endpoints: list[str]) -> str:
    return ", ".join(endpoints) if len(endpoints) <= 2 else f"{endpoints[0]} … {endpoints[-1]}"
