"""`infctl up --bench`: one workload with round-robin and with a policy, each on a cold fleet."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infctl import compose
from infctl.actuators.local import Interrupted
from infctl.bench.runner import Progress, RunSpec, duration_s, pick_speed
from infctl.bench.runner import run as run_bench
from infctl.cli.up_fleet import LocalFleet, Place
from infctl.slo import Slo

if TYPE_CHECKING:
    from infctl.bench.result import Result, RunResult
    from infctl.cli.up_signals import Signals
    from infctl.profile.model import Profile

BASELINE = "round-robin"
_INTERRUPTED = 130
_LINE_S = 10.0


class Bench(msgspec.Struct, frozen=True):
    """What to send and where to write. `speed` None: as fits about 80 s a run."""

    workload: str
    limit: int | None
    rate_scale: float
    speed: float | None
    seed: int
    out: Path
    policy: str | None


def run(profile: Profile, place: Place, bench: Bench, signals: Signals) -> int:
    """Measure, show and write; the exit code: 1 if a request failed, 130 if interrupted."""
    spec = _spec(profile, bench)
    length_s = duration_s(spec)
    real = profile.engine.type != "emulated" and not place.emulate
    speed = bench.speed or (1.0 if real else pick_speed(length_s))
    spec = msgspec.structs.replace(spec, speed=speed)
    place = msgspec.structs.replace(place, speed=speed)
    _say_speed(bench, speed, length_s)
    runs = []
    try:
        for name, routed in _policies(profile, bench.policy):
            policy_spec = msgspec.structs.replace(spec, policy=name)
            runs.append(_measure(routed, place, policy_spec, signals))
    except Interrupted:
        return _INTERRUPTED
    return _conclude(runs, spec, bench.out, profile.slo.target)


def _spec(profile: Profile, bench: Bench) -> RunSpec:
    return RunSpec(
        url="",
        workload=bench.workload,
        model=profile.models[0].name,
        limit=bench.limit,
        seed=bench.seed,
        rate_scale=bench.rate_scale,
        slo=Slo(ttft_ms=profile.slo.ttft_ms, tpot_ms=profile.slo.tpot_ms),
    )


def _policies(profile: Profile, policy: str | None) -> list[tuple[str, Profile]]:
    """The baseline, which differs from the profile in the picker alone, and the policy."""
    chosen = compose.with_policy(profile, policy) if policy else profile
    return [
        (BASELINE, compose.with_policy(chosen, BASELINE)),
        (policy or compose.policy_name(profile), chosen),
    ]


def _say_speed(bench: Bench, speed: float, length_s: float) -> None:
    wall_s = length_s / speed
    why = "" if bench.speed else " (chosen to fit; --speed sets it)"
    print(
        f"{bench.workload}: {length_s:.0f} s of arrivals at {speed:g}× speed{why}, "
        f"about {wall_s:.0f} s a run",
        flush=True,
    )


def _measure(profile: Profile, place: Place, spec: RunSpec, signals: Signals) -> RunResult:
    """One run on a fleet of its own."""
    fleet = LocalFleet(profile, place, signals)
    shown = _Shown(spec.policy, signals)
    try:
        shown.say("starting units and router")
        url = fleet.start(lambda _: None)
        shown.say("sending")
        return run_bench(msgspec.structs.replace(spec, url=url), shown.progress)
    finally:
        try:
            shown.close()  # fails where the terminal went away
        finally:
            fleet.stop()


class _Shown:
    """Progress of one run: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, policy: str, signals: Signals) -> None:
        self._policy = policy
        self._signals = signals
        self._next_at = 0.0
        self._close: Callable[[], None] = lambda: None
        self._draw = self._bar() if sys.stdout.isatty() else self._line

    def say(self, what: str) -> None:
        """What happens now."""
        if not sys.stdout.isatty():
            print(f"{self._policy}: {what}", flush=True)

    def progress(self, progress: Progress) -> None:
        """Show it. Raises Interrupted when told to stop."""
        if self._signals.count:
            raise Interrupted
        self._draw(progress)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._close()

    def _line(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.total and now >= self._next_at:
            self._next_at = now + _LINE_S
            print(f"{self._policy}: {_counts(progress)}", flush=True)

    def _bar(self) -> Callable[[Progress], None]:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = ("[bold]{task.fields[policy]:<16}", "{task.fields[counts]}")
        bar = Bar(
            TextColumn(columns[0]), BarColumn(), TextColumn(columns[1]), TimeRemainingColumn()
        )
        task = bar.add_task("", total=None, policy=self._policy, counts="starting")
        bar.start()
        self._close = bar.stop

        def draw(progress: Progress) -> None:
            total = progress.total or None
            bar.update(task, completed=progress.done, total=total, counts=_counts(progress))

        return draw


def _counts(progress: Progress) -> str:
    errors = f", {progress.errors} errors" if progress.errors else ""
    return f"{progress.done:,}/{progress.total:,}, {progress.running} open{errors}"


def _conclude(runs: list[RunResult], spec: RunSpec, out: Path, target: float) -> int:
    from rich.console import Console

    from infctl.bench import report, result, table

    whole: Result = result.build(runs, spec, command=shlex.join(["infctl", *sys.argv[1:]]))
    result.write(whole, out / "result.json")
    result.write_file(out / "report.html", report.render(whole).encode())
    Console().print(table.comparison(whole))
    for each in runs:
        verdict = "met" if each.good_share >= target else "missed"
        print(
            f"{each.policy}: {each.good_share:.1%} within the SLO, target {target:.1%}: {verdict}"
        )
    for note in whole.notes:
        print(f"Note: {note}")
    print(f"\n{out / 'report.html'}\n{out / 'result.json'}", flush=True)
    return 1 if any(each.errors for each in runs) else 0
