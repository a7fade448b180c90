"""`infctl up --bench`: one workload with round-robin and with a policy, each on a cold fleet."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from infctl import compose
from infctl.actuators.local import Interrupted
from infctl.bench.runner import Progress, RunSpec, duration_s, pick_speed
from infctl.bench.runner import run as run_bench
from infctl.cli.bench import key_headers
from infctl.cli.up_fleet import LocalFleet, Place
from infctl.cli.up_view import Terminal
from infctl.errors import UsageError
from infctl.runs import result
from infctl.slo import Slo

if TYPE_CHECKING:
    from infctl.cli.up_signals import Signals
    from infctl.profile.model import Profile
    from infctl.runs.result import RunResult

BASELINE = "round-robin"
_INTERRUPTED = 130
_LINE_S = 10.0


class Bench(msgspec.Struct, frozen=True):
    """What to send and where to write. `speed` None: as fits about 80 s a run.

    `as_json`: standard output gets result.json, standard error everything else.
    """

    workload: str
    limit: int | None
    rate_scale: float
    speed: float | None
    seed: int
    out: Path
    policy: str | None
    as_json: bool = False


def run(profile: Profile, place: Place, bench: Bench, signals: Signals) -> int:
    """Measure, show and write; the exit code: 1 if a request failed, 130 if interrupted."""
    said = sys.stderr if bench.as_json else sys.stdout
    policies = _policies(profile, bench.policy)
    result.check_folder(bench.out)
    spec = _spec(profile, bench)
    length_s = duration_s(spec)
    real = profile.engine.type != "emulated" and not place.emulate
    speed = bench.speed or (1.0 if real else pick_speed(length_s))
    spec = msgspec.structs.replace(spec, speed=speed)
    place = msgspec.structs.replace(place, speed=speed)
    print(_pace(bench, speed, length_s, [name for name, _ in policies]), file=said, flush=True)
    runs = []
    try:
        for name, routed in policies:
            policy_spec = msgspec.structs.replace(spec, policy=name)
            runs.append(_measure(routed, place, policy_spec, _Shown(name, signals, said)))
    except Interrupted:
        print(f"interrupted: nothing was written to {bench.out}", file=sys.stderr, flush=True)
        return _INTERRUPTED
    return _conclude(runs, spec, bench, profile.slo.target)


def _spec(profile: Profile, bench: Bench) -> RunSpec:
    return RunSpec(
        url="",
        workload=bench.workload,
        model=profile.models[0].name,
        limit=bench.limit,
        seed=bench.seed,
        rate_scale=bench.rate_scale,
        slo=Slo(ttft_ms=profile.slo.ttft_ms, tpot_ms=profile.slo.tpot_ms),
        headers=key_headers() if profile.routing.keys_file else {},
    )


def _policies(profile: Profile, policy: str | None) -> list[tuple[str, Profile]]:
    """The baseline, which differs from the profile in the picker alone, and the policy."""
    chosen = compose.with_policy(profile, policy) if policy else profile
    name = policy or compose.policy_name(profile)
    if name == BASELINE:
        whose = "that is" if policy else "the profile's policy is"
        raise UsageError(
            f"--bench compares with {BASELINE}, and {whose} {BASELINE} itself",
            hint="Name another with --policy: predicted-ttft, least-request, prefix-affinity, …",
        )
    return [(BASELINE, compose.with_policy(chosen, BASELINE)), (name, chosen)]


def _pace(bench: Bench, speed: float, length_s: float, policies: list[str]) -> str:
    why = "" if bench.speed else " (chosen to fit; --speed sets it)"
    return (
        f"{bench.workload}: {length_s:,.0f} s of arrivals at {speed:g}× speed{why}, "
        f"about {length_s / speed:,.0f} s a run\nRuns: {', then '.join(policies)}"
    )


def _measure(profile: Profile, place: Place, spec: RunSpec, shown: _Shown) -> RunResult:
    """One run on a fleet of its own."""
    fleet = LocalFleet(profile, place, shown.signals)
    try:
        shown.say("starting units and router")
        url = fleet.start(lambda _: None)
        shown.say("sending")
        spec = msgspec.structs.replace(spec, url=url, endpoints=fleet.endpoints())
        return run_bench(spec, shown.progress)
    finally:
        try:
            shown.close()  # fails where the terminal went away
        finally:
            fleet.stop()


class _Shown:
    """Progress of one run: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, policy: str, signals: Signals, stream: TextIO) -> None:
        self.signals = signals
        self._policy = policy
        self._stream = stream
        self._next_at = 0.0
        self._close: Callable[[], None] = lambda: None
        self._tell: Callable[[str], None] = self._print
        self._draw: Callable[[Progress], None] = self._line
        self._barred = False

    def say(self, what: str) -> None:
        """What happens now."""
        if self._stream.isatty() and not self._barred:
            self._draw, self._barred = self._bar(), True
        self._tell(what)

    def progress(self, progress: Progress) -> None:
        """Show it. Raises Interrupted when told to stop."""
        if self.signals.count:
            raise Interrupted
        self._draw(progress)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._close()

    def _line(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.total and now >= self._next_at:
            self._next_at = now + _LINE_S
            self._print(_counts(progress))

    def _print(self, what: str) -> None:
        print(f"{self._policy}: {what}", file=self._stream, flush=True)

    def _bar(self) -> Callable[[Progress], None]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        bar = Bar(
            TextColumn("[bold]{task.fields[policy]:<16}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[counts]}"),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
        )
        task = bar.add_task("", total=None, policy=self._policy, counts="")
        terminal = Terminal()
        terminal.quiet()
        bar.start()

        def close() -> None:
            try:
                bar.stop()
            finally:
                terminal.restore()

        self._close = close
        self._tell = lambda what: bar.update(task, counts=what)

        def draw(progress: Progress) -> None:
            total = progress.total or None
            bar.update(task, completed=progress.done, total=total, counts=_counts(progress))

        return draw


def _counts(progress: Progress) -> str:
    errors = f", {progress.errors} errors" if progress.errors else ""
    return f"{progress.done:,}/{progress.total:,}, {progress.running} open{errors}"


def _conclude(runs: list[RunResult], spec: RunSpec, bench: Bench, target: float) -> int:
    from infctl.runs import output

    whole = result.build(runs, spec, command=shlex.join(["infctl", *sys.argv[1:]]))
    output.show(whole, bench.out, as_json=bench.as_json, target=target)
    return 1 if any(each.errors for each in runs) else 0
