"""`infctl sim`: a profile's fleet and policies against a workload, in virtual time."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from infctl.cli import sim_options as options
from infctl.cli.group import RunGroup
from infctl.cli.sim_compare import compare_command
from infctl.cli.sim_replay import replay

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

app.command("compare")(compare_command)
app.command("replay")(replay)


@app.command("run")
def run_command(
    profile: options.Ref,
    workload: options.Workload = "conversation",
    parameter: options.Parameters = None,
    policy: options.Policies = None,
    rate_scale: options.Rates = None,
    units: options.Units = None,
    limit: options.Limit = None,
    concurrency: options.Concurrency = None,
    seed: options.Seed = 0,
    sets: options.Sets = None,
    out: options.Out = Path("infctl-out"),
    as_json: options.AsJson = False,
) -> None:
    """Run a workload through a profile's fleet in virtual time.

    Prints the table of `bench`, and writes result.json and report.html; several rate scales get a
    folder each. Exit code 1 if a request failed or was not finished.
    """
    from infctl.errors import EXIT_VERDICT_NO
    from infctl.runs import output
    from infctl.runs.result import check_folder

    check_folder(out)
    fleet = options.fleet(profile, sets, units)
    policies = _policies(fleet, policy)
    scales = rate_scale or [1.0]
    spec = options.spec(fleet, workload, parameter, limit=limit, concurrency=concurrency, seed=seed)
    prepared = _prepare(fleet, spec)
    failed = False
    for scale in scales:
        found = _simulate(policies, spec, scale, prepared)
        folder = out / f"rate-{scale:g}" if len(scales) > 1 else out
        output.show(found, folder, as_json=as_json, target=fleet.slo.target)
        failed = failed or any(run.errors for run in found.runs)
    if failed:
        raise typer.Exit(EXIT_VERDICT_NO)


def _policies(fleet: Profile, wanted: list[str] | None) -> list[tuple[str, Profile]]:
    from infctl.compose import policy_name, with_policy

    if not wanted:
        return [(policy_name(fleet), fleet)]
    return [(name, with_policy(fleet, name)) for name in dict.fromkeys(wanted)]


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
