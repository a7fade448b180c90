"""`infctl sim`: a profile's fleet and policies against a workload, in virtual time."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infctl.cli.group import RunGroup

if TYPE_CHECKING:
    from infctl.profile.model import Profile
    from infctl.runs.result import Result
    from infctl.runs.spec import RunSpec
    from infctl.sim.run import Prepared

app = typer.Typer(
    cls=RunGroup,
    no_args_is_help=True,
    help="Simulate a fleet and its policies in virtual time. `infctl sim PROFILE` means "
    "`sim run PROFILE`.",
)

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


@app.command("run")
def run_command(
    profile: Ref,
    workload: Workload = "conversation",
    parameter: Parameters = None,
    policy: Policies = None,
    rate_scale: Rates = None,
    units: Units = None,
    limit: Limit = None,
    concurrency: Concurrency = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = Path("infctl-out"),
    as_json: AsJson = False,
) -> None:
    """Run a workload through a profile's fleet in virtual time.

    Prints the table of `bench`, and writes result.json and report.html; several rate scales get a
    folder each. Exit code 1 if a request failed or was not finished.
    """
    from infctl.errors import EXIT_VERDICT_NO
    from infctl.runs import output
    from infctl.runs.result import check_folder

    check_folder(out)
    fleet = _fleet(profile, sets, units)
    policies = _policies(fleet, policy)
    scales = rate_scale or [1.0]
    spec = _spec(fleet, workload, parameter, limit=limit, concurrency=concurrency, seed=seed)
    prepared = _prepare(fleet, spec)
    failed = False
    for scale in scales:
        found = _simulate(policies, spec, scale, prepared)
        folder = out / f"rate-{scale:g}" if len(scales) > 1 else out
        output.show(found, folder, as_json=as_json, target=fleet.slo.target)
        failed = failed or any(run.errors for run in found.runs)
    if failed:
        raise typer.Exit(EXIT_VERDICT_NO)


def _fleet(ref: str, sets: list[str] | None, units: int | None) -> Profile:
    from infctl.cli.profile_checks import load
    from infctl.sim.fleet import resized

    fleet = load(ref, sets or [])
    return resized(fleet, units) if units else fleet


def _policies(fleet: Profile, wanted: list[str] | None) -> list[tuple[str, Profile]]:
    from infctl.compose import policy_name, with_policy

    if not wanted:
        return [(policy_name(fleet), fleet)]
    return [(name, with_policy(fleet, name)) for name in dict.fromkeys(wanted)]


def _spec(
    fleet: Profile,
    workload: str,
    parameters: list[str] | None,
    *,
    limit: int | None,
    concurrency: int | None,
    seed: int,
) -> RunSpec:
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
        slo=Slo(fleet.slo.ttft_ms, fleet.slo.tpot_ms),
    )


def _prepare(fleet: Profile, spec: RunSpec) -> Prepared:
    from infctl.sim.run import prepare

    return prepare(fleet, spec)


def _simulate(
    policies: list[tuple[str, Profile]], spec: RunSpec, scale: float, prepared: Prepared
) -> Result:
    from msgspec.structs import replace

    from infctl.runs import result
    from infctl.runs.summary import summarise
    from infctl.sim.fleet import endpoint_names
    from infctl.sim.run import simulate

    spec = replace(spec, rate_scale=scale)
    runs = []
    for name, fleet in policies:
        own = replace(spec, policy=name, endpoints=tuple(endpoint_names(fleet)))
        runs.append(summarise(simulate(fleet, own, prepared), own))
    return result.build(runs, spec, command=shlex.join(["infctl", *sys.argv[1:]]))
