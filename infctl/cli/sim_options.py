"""What the verbs of `infctl sim` take, and what they make of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from infctl.profile.model import Profile
    from infctl.runs.spec import RunSpec

Ref = Annotated[str, typer.Argument(metavar="PROFILE", help="A shipped profile, or a file.")]
Workload = Annotated[
    str, typer.Option(metavar="NAME|TRACE", help="A built-in workload's name, or a trace.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", metavar="NAME=VALUE", help="Of the workload; may be repeated."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", metavar="NAME", help="A policy to run; may be repeated. Default: the profile's."
    ),
]
Rates = Annotated[
    list[float] | None,
    typer.Option("--rate-scale", min=1e-6, help="Multiply the rate of arrivals; may be repeated."),
]
Units = Annotated[
    int | None,
    typer.Option(min=1, max=100_000, help="Units in all; pools keep their proportions."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Requests to send; default: a whole trace, or 1000.")
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, max=16384, help="Keep N requests open, whatever their arrival."),
]
Seed = Annotated[int, typer.Option(help="Same seed, same requests and same choices.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: routing.picker=best."),
]
Out = Annotated[Path, typer.Option(help="Folder for result.json and report.html.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print result.json.")]


def fleet(ref: str, sets: list[str] | None, units: int | None) -> Profile:
    """The profile, with so many units. Raises InputError."""
    from infctl.cli.profile_checks import load
    from infctl.sim.fleet import resized

    found = load(ref, sets or [])
    return resized(found, units) if units else found


def spec(
    profile: Profile,
    workload: str,
    parameters: list[str] | None,
    *,
    limit: int | None,
    concurrency: int | None,
    seed: int,
) -> RunSpec:
    """What to run on it. Raises UsageError."""
    from infctl.cli.bench import workload_parameters
    from infctl.runs.spec import RunSpec
    from infctl.slo import Slo

    return RunSpec(
        url="",
        workload=workload,
        parameters=workload_parameters(parameters or []),
        limit=limit,
        seed=seed,
        concurrency=concurrency,
        slo=Slo(profile.slo.ttft_ms, profile.slo.tpot_ms),
    )
