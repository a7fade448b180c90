"""`infctl bench`: send a workload to one address, show what came of it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from infctl.cli.group import RunGroup

if TYPE_CHECKING:
    from infctl.bench.runner import RunSpec
    from infctl.runs.result import Result

app = typer.Typer(
    cls=RunGroup,
    no_args_is_help=True,
    help="Send a workload to an endpoint and measure. `infctl bench URL` means `bench run URL`.",
)

Url = Annotated[str, typer.Argument(help="Base URL, as in http://127.0.0.1:8000.")]
ModelName = Annotated[str, typer.Option(help="Model name; default: the server's first.")]
WorkloadRef = Annotated[str, typer.Option(help="A built-in workload, or the path of a trace.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter of the workload, NAME=VALUE; may be repeated."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Requests to send; default: a whole trace, or 1000.")
]
RateScale = Annotated[float, typer.Option(min=1e-6, help="Multiply the rate of arrivals.")]
Speed = Annotated[
    float, typer.Option(min=0.001, max=1000, help="Speed of an emulated fleet; 1 for real engines.")
]
Seed = Annotated[int, typer.Option(help="Same seed, same requests.")]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, max=16384, help="Keep N requests open, whatever their arrival."),
]
ApiName = Annotated[Literal["completions", "chat"], typer.Option(help="Which API to call.")]
SloTtft = Annotated[float, typer.Option(min=0.001, help="SLO of a first token.")]
SloTpot = Annotated[float, typer.Option(min=0.001, help="SLO of every further token.")]
Timeout = Annotated[
    float, typer.Option(min=0.1, help="Give up on a request that is silent for so long.")
]
Out = Annotated[Path, typer.Option(help="Folder for result.json and report.html.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print result.json.")]


@app.command("run")
def run_command(
    url: Url,
    model: ModelName = "",
    workload: WorkloadRef = "conversation",
    parameter: Parameters = None,
    limit: Limit = None,
    rate_scale: RateScale = 1.0,
    speed: Speed = 1.0,
    seed: Seed = 0,
    concurrency: Concurrency = None,
    api: ApiName = "completions",
    slo_ttft_ms: SloTtft = 2000.0,
    slo_tpot_ms: SloTpot = 50.0,
    timeout_s: Timeout = 600.0,
    out: Out = Path("infctl-out"),
    as_json: AsJson = False,
) -> None:
    """Send a workload to URL; print a table, write result.json and report.html.

    Exit code 1 if a request failed. A key in INFCTL_API_KEY is sent as the bearer token.
    """
    from infctl.bench.runner import RunSpec
    from infctl.errors import EXIT_VERDICT_NO
    from infctl.runs import output
    from infctl.runs.result import check_folder
    from infctl.slo import Slo

    check_folder(out)

    spec = RunSpec(
        url=url,
        model=model,
        workload=workload,
        parameters=workload_parameters(parameter or []),
        limit=limit,
        rate_scale=rate_scale,
        speed=speed,
        seed=seed,
        concurrency=concurrency,
        api=api,
        slo=Slo(slo_ttft_ms, slo_tpot_ms),
        timeout_s=timeout_s,
        headers=key_headers(),
    )
    found = _measure(spec)
    output.show(found, out, as_json=as_json)
    if any(run.errors for run in found.runs):
        raise typer.Exit(EXIT_VERDICT_NO)


@app.command("report")
def report_command(
    path: Annotated[Path, typer.Argument(help="A result.json, or its folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html; default: beside the result.")
    ] = None,
) -> None:
    """Show a result again and write its report.html anew."""
    from infctl.runs import output, report, result

    found = result.read(path)
    folder = out or (path if path.is_dir() else path.parent)
    result.write_file(folder / "report.html", report.render(found).encode())
    output.show_table(found)
    print(f"Wrote {folder / 'report.html'}")


def _measure(spec: RunSpec) -> Result:
    from infctl.bench import runner
    from infctl.bench.bar import progress_bar
    from infctl.runs import result

    with progress_bar("bench") as progress:
        run = runner.run(spec, progress)
    return result.build([run], spec, command=shlex.join(["infctl", *sys.argv[1:]]))


def workload_parameters(pairs: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs as a workload takes them, values as JSON or as text. Raises UsageError."""
    import msgspec

    from infctl.errors import UsageError

    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{pair!r} is not NAME=VALUE")
        try:
            found[name.replace("-", "_")] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name.replace("-", "_")] = text
    return found


def key_headers() -> dict[str, str]:
    """The API key of the environment, as every request carries it; nothing where there is none."""
    key = os.environ.get("INFCTL_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
