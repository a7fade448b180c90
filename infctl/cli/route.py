"""`infctl route`: where requests go."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

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

    from infctl.cli.profile_checks import load
    from infctl.compose import route_table

    routes = route_table(load(profile, sets or []))
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


@app.command()
def explain(
    request_id: Annotated[
        str | None, typer.Argument(help="The x-request-id of an answer; default: the last one.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Explain where this prompt would go now, sending nothing.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --prompt: the model.")] = None,
    fleet: Annotated[
        str | None, typer.Option(help="Whose router; default: the only one that runs here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the router's own words.")] = False,
) -> None:
    """Show why a request went where it went: who was dropped by which filter, how the others
    scored, what was expected and what came true. The router keeps its last 1,000 decisions."""
    import json
    from urllib.parse import quote

    from infctl.cli import admin
    from infctl.errors import InputError, UsageError

    if request_id and prompt is not None:
        raise UsageError("give a request id or --prompt, not both")
    socket = admin.find(fleet)
    if prompt is not None:
        body = {"prompt": prompt} | ({"model": model} if model else {})
        found = admin.ask(socket, "POST", "/v1/explain", json.dumps(body).encode())
    else:
        target = f"/v1/decisions/{quote(request_id, safe='')}" if request_id else "/v1/decisions"
        found = admin.ask(socket, "GET", target)
        if not found["decisions"]:
            what = f"about {request_id!r}" if request_id else "yet"
            raise InputError(
                f"the router has made no decision {what}", hint="It keeps the last 1,000."
            )
        found["decisions"] = found["decisions"][: None if request_id else 1]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for part in _explained(found):
        console.print(part)


def _explained(found: dict[str, Any]) -> list[RenderableType]:
    if "decisions" not in found:
        head = f"A prompt of about {found['prompt_tokens']:,} tokens for {found['model']}, now:"
        ranking = _ranking(found["endpoints"], found["units"])
        note = [] if found["decided_by_score"] else [f"{found['policy']} does not go by scores."]
        return [head, ranking, *note]
    parts: list[RenderableType] = []
    for decision in reversed(found["decisions"]):
        parts += [
            _headline(decision, found["policy"]),
            _ranking(decision["endpoints"], found["units"]),
        ]
        parts.append(_outcome(decision))
    return parts


def _headline(decision: dict[str, Any], policy: str) -> str:
    attempt = f", attempt {decision['attempt']}" if decision["attempt"] > 1 else ""
    waited = f", after {decision['queue_ms'] / 1000:.1f} s in the queue"
    return (
        f"{decision['request']} → {decision['endpoint']} by {policy}{attempt}, "
        f"{decision['age_s']:.1f} s ago, about {decision['prompt_tokens']:,} prompt tokens"
        + (waited if decision["queue_ms"] else "")
    )


def _ranking(endpoints: list[dict[str, Any]], units: dict[str, str]) -> RenderableType:
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    grid.add_column("ENDPOINT")
    grid.add_column("CACHED", justify="right")
    scorers = list(endpoints[0]["scores"]) if endpoints else []
    for name in [*scorers, *(["total"] if len(scorers) > 1 else [])]:
        grid.add_column(name.upper(), justify="right", overflow="fold")
    grid.add_column("")
    for row in endpoints:
        values = [_score(row["scores"].get(name), units.get(name)) for name in scorers]
        values += [_score(row["total"], None)] if len(scorers) > 1 else []
        note = "← picked" if row["picked"] else f"dropped by {row['dropped_by']}"
        if not row["picked"] and not row["dropped_by"]:
            note = ""
        grid.add_row(row["endpoint"], f"{row['cached_tokens']:,}", *values, note)
    return grid


def _score(value: float | None, unit: str | None) -> str:
    """A cost in ms is a negative score; shown as the cost it is."""
    if value is None:
        return ""
    return f"{-value:,.1f} ms" if unit == "ms" else f"{value:.3f}"


def _outcome(decision: dict[str, Any]) -> str:
    expected, actual = decision["expected"], decision["actual"]
    parts = [decision["outcome"]]
    if actual["ttft_ms"] is not None:
        parts.append(f"TTFT {actual['ttft_ms']:,.0f} ms, expected {expected['ttft_ms']:,.0f}")
    if actual["cached_tokens"] is not None:
        parts.append(
            f"{actual['cached_tokens']:,} tokens from cache, expected {expected['cached_tokens']:,}"
        )
    return "; ".join(parts)
