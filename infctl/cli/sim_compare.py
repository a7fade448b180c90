"""`infctl sim compare`: the profile's policy against published rules at their best parameters."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infctl.cli import sim_options as options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infctl.profile.model import Profile
    from infctl.runs.spec import RunSpec
    from infctl.sim.compare import Comparison

LIMIT = 6000

Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME|TRACE",
        help="A built-in workload or a trace; may be repeated. Default: every built-in one.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="Against whom; may be repeated. Default: every published rule.",
    ),
]
Limit = Annotated[int, typer.Option(min=100, help="Requests of each workload.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, max=256, help="Processes; default: one for each core.")
]
Out = Annotated[Path, typer.Option(help="Folder for compare.json and compare.md.")]


def compare_command(
    profile: options.Ref,
    workload: Workloads = None,
    policy: Policies = None,
    units: options.Units = None,
    limit: Limit = LIMIT,
    seed: options.Seed = 0,
    sets: options.Sets = None,
    jobs: Jobs = None,
    out: Out = Path("infctl-out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json.")] = False,
) -> None:
    """Compare the profile's policy with published rules, each at its best parameters.

    Two readings for each workload: latency at loads up to 1.1 of round-robin's saturation, and the
    highest rate at which 90 % of the requests meet the SLO and no prompt length is starved.
    """
    import msgspec

    from infctl.compose import names
    from infctl.runs.result import check_folder, write_file
    from infctl.sim.contenders import rivals
    from infctl.sim.standings import render, render_narrow

    check_folder(out)
    fleet = options.fleet(profile, sets, units)
    found: list[Comparison] = []
    for each in workload or names("workload"):
        spec = options.spec(fleet, each, None, limit=limit, concurrency=None, seed=seed)
        found.append(_compare(fleet, spec, policy or rivals(), jobs or os.cpu_count() or 1))
        if not as_json:
            print(render_narrow(found[-1]), flush=True)
    data = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    write_file(out / "compare.json", data)
    write_file(out / "compare.md", ("\n\n".join(map(render, found)) + "\n").encode())
    if as_json:
        sys.stdout.write(data.decode())
    else:
        print(f"Wrote {out / 'compare.md'} and {out / 'compare.json'}")


def _compare(fleet: Profile, spec: RunSpec, policies: list[str], jobs: int) -> Comparison:
    from msgspec.structs import replace

    from infctl.sim.compare import compare

    with _telling(spec.workload) as tell:
        found = compare(fleet, spec, policies, jobs, tell)
    return replace(found, command=shlex.join(["infctl", *sys.argv[1:]]))


@contextmanager
def _telling(workload: str) -> Iterator[Callable[[str], None]]:
    """What happens now: a line that changes on a terminal, nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(workload) as status:
        yield lambda text: status.update(f"{Path(workload).name}: {text}")
