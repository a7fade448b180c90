"""`infctl up`: a whole fleet on this machine, to use or to measure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infctl.actuator import DesiredUnit
    from infctl.cli.up_fleet import LocalFleet
    from infctl.cli.up_signals import Signals
    from infctl.cli.up_view import View
    from infctl.profile.model import Profile

app = typer.Typer(help="Run a whole fleet on this machine, or measure it with --bench.")

_INTERRUPTED = 130
_SHOW_S = 1.0
_UNITS_S = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600}


def duration_s(text: str) -> float:
    """Seconds of `90`, `60s`, `5m`, `1h`. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 60s, 5m or 1h")
    return float(found[1]) * _UNITS_S[found[2]]


def _bench_option(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Measuring (--bench)", **more)


Ref = Annotated[str, typer.Argument(metavar="PROFILE", help="A shipped profile, or a file.")]
For = Annotated[str | None, typer.Option("--for", metavar="TIME", help="End after 60s, 5m, 1h.")]
Json = Annotated[bool, typer.Option("--json", help="Print the state: one JSON document a line.")]
Host = Annotated[str, typer.Option(help="Address the router listens on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 takes any free one.")]
Emulate = Annotated[
    bool, typer.Option("--emulate", help="Emulate every engine with its model's timing model.")
]
Speed = Annotated[
    float | None,
    typer.Option(
        min=1, max=100, help="Run emulated time so many times faster; with --bench what fits."
    ),
]
Policy = Annotated[
    str | None, typer.Option(metavar="NAME", help="Route by it, not by the profile's policy.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: pools.chat.units.ready=3."),
]
Bench = Annotated[
    bool,
    _bench_option(
        "--bench", text="Send a workload, once with round-robin, once with the policy; compare."
    ),
]
Workload = Annotated[
    str, _bench_option(text="A built-in workload's name, or a trace.", metavar="NAME|TRACE")
]
Limit = Annotated[
    int | None,
    _bench_option(
        text="At most so many requests. Default: 1000 of a built-in, all of a trace.", min=1
    ),
]
RateScale = Annotated[float, _bench_option(text="Multiply the rate of arrivals.", min=0.001)]
Seed = Annotated[int, _bench_option(text="Seed of everything random.", min=0)]
Out = Annotated[Path, _bench_option(text="Where report.html and result.json go.")]


@app.command()
def up(
    context: typer.Context,
    ref: Ref = "demo",
    for_: For = None,
    as_json: Json = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    emulate: Emulate = False,
    speed: Speed = None,
    policy: Policy = None,
    sets: Sets = None,
    bench: Bench = False,
    workload: Workload = "conversation",
    limit: Limit = None,
    rate_scale: RateScale = 1.0,
    seed: Seed = 0,
    out: Out = Path("infctl-out"),
) -> None:
    """Run a whole fleet on this machine until Ctrl-C: engines, and the router before them.

    With --bench, run it twice to measure its policy against round-robin.
    """
    from infctl.cli.profile_checks import load
    from infctl.cli.up_checks import check_units
    from infctl.cli.up_fleet import LocalFleet, Place, owned
    from infctl.cli.up_signals import Signals

    _check_options(context, bench)
    end_s = None if for_ is None else duration_s(for_)
    profile = load(ref, sets or ())
    check_units(profile)
    place = Place(host=host, port=port, emulate=emulate, speed=speed or 1.0, seed=seed)
    with Signals() as signals, owned(profile.metadata.name):
        if bench:
            from infctl.cli import up_bench

            asked = up_bench.Bench(
                workload, limit, rate_scale, speed, seed, out, policy, as_json=as_json
            )
            code = up_bench.run(profile, place, asked, signals)
        else:
            source = [ref, *(f"--set={each}" for each in sets or ())]
            source += [f"--policy={policy}"] if policy else []
            fleet = LocalFleet(_routed(profile, policy), place, signals, source)
            code = _serve(fleet, as_json, end_s)
    raise typer.Exit(code)


_BENCH_ONLY = ("workload", "limit", "rate_scale", "seed", "out")


def _check_options(context: typer.Context, bench: bool) -> None:
    """Raise UsageError on an option that would do nothing."""
    from infctl.errors import UsageError

    given = [n for n in (*_BENCH_ONLY, "for_") if _given(context, n)]
    if bench and "for_" in given:
        raise UsageError(
            "--for has no meaning with --bench, which ends after its two runs",
            hint="--limit sets how many requests each run sends.",
        )
    idle = ["--" + name.replace("_", "-") for name in given if name in _BENCH_ONLY]
    if idle and not bench:
        have = "has" if len(idle) == 1 else "have"
        raise UsageError(f"{' and '.join(idle)} {have} no effect without --bench")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _routed(profile: Profile, policy: str | None) -> Profile:
    from infctl.compose import with_policy

    return with_policy(profile, policy) if policy else profile


def _serve(fleet: LocalFleet, as_json: bool, end_s: float | None) -> int:
    from infctl.actuators.local import Interrupted
    from infctl.cli.up_view import view

    place, signals, shown, code = fleet.place, fleet.signals, view(as_json), 0
    desired = fleet.prepare()
    shown.starting(fleet.name, _made_of(desired))
    try:
        url = fleet.start(shown.unit, desired)
        shown.ready(fleet.name, url, _end(end_s, place.speed))
        _watch(fleet, shown, signals, end_s)
        shown.stopping()
    except Interrupted:
        shown.stopping()
        code = _INTERRUPTED
    finally:
        try:
            shown.close()  # fails where the terminal went away
        finally:
            fleet.stop()
    shown.stopped()
    return code


def _made_of(units: Sequence[DesiredUnit]) -> str:
    """`8 emulated units of deepseek-v3, and the router`."""
    kinds = " and ".join(dict.fromkeys(unit.engine for unit in units))
    models = ", ".join(dict.fromkeys(unit.spec.model for unit in units))
    return f"{len(units):,} {kinds} unit{'s'[: len(units) != 1]} of {models}, and the router"


def _end(end_s: float | None, speed: float) -> str:
    """What will end a fleet, and what its figures are, for people."""
    import time

    pace = f" Figures are wall time, of engines at {speed:g}× speed." if speed != 1 else ""
    if end_s is None:
        return f"Ctrl-C stops it.{pace}"
    at = time.strftime("%H:%M:%S", time.localtime(time.time() + end_s))
    return f"Stops at {at}, after {end_s:g} s; Ctrl-C stops it earlier.{pace}"


def _watch(fleet: LocalFleet, shown: View, signals: Signals, end_s: float | None) -> None:
    import time

    from infctl.cli.up_view import Snapshot

    assert fleet.router is not None
    deadline = None if end_s is None else time.monotonic() + end_s
    while True:
        fleet.check()
        shown.show(Snapshot(fleet.name, fleet.router.url, fleet.units(), fleet.figures()))
        left_s = _SHOW_S if deadline is None else deadline - time.monotonic()
        if signals.wait(min(_SHOW_S, left_s)) or (deadline and time.monotonic() >= deadline):
            return
