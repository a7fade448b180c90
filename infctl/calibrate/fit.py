"""From measured experiments to a timing model. Pure.

Theory. The timing model's coefficients show in what clients measure only through batching, chunks
and queues, so the engine model itself (infctl.replica) is what is fitted: every experiment is
simulated, and the coefficients move until simulated and measured times agree. The error of one
figure is the logarithm of simulated over measured, so that short and long times weigh alike.
Levenberg-Marquardt on finite differences, in the logarithms of the coefficients, which keeps them
positive; one that should be 0 becomes negligibly small.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from infctl.calibrate.plan import Ask, Experiment, Group
from infctl.replica import (
    Finished,
    FirstToken,
    Happening,
    Replica,
    ReplicaOptions,
    ReplicaRequest,
)
from infctl.timing import Decode, Prefill, TimingModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]
    _Residuals = Callable[[Vector], Vector]

ROUNDS = 40
_DAMPING = 0.1
_STEP = 1e-3
_TINY = 1e-9
_LOG_RANGE = 40.0
_SETTLED = 1e-6
NAMES = ("c0", "c1", "c2", "d0", "ds", "d1", "dk", "ttft_overhead_ms", "interference")
_KNOWN_FROM: dict[str, Group] = {
    "c1": "lone",
    "c2": "cached",
    "c0": "queued",
    "d0": "decode",
    "interference": "mixed",
}


class Times(msgspec.Struct, frozen=True):
    """Figures of an experiment in ms, ascending: times to first token, and times per output token
    of the requests that ask for several."""

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]


class Measurement(msgspec.Struct, frozen=True):
    """An experiment and what came of it, several times over."""

    experiment: Experiment
    rounds: tuple[Times, ...]

    def typical(self) -> Times:
        """The median of each figure."""
        ttft = zip(*(r.ttft_ms for r in self.rounds), strict=True)
        tpot = zip(*(r.tpot_ms for r in self.rounds), strict=True)
        return Times(tuple(median(each) for each in ttft), tuple(median(each) for each in tpot))


class Engine(msgspec.Struct, frozen=True):
    """What is known of the engine beside times. Cached prefixes are whole blocks."""

    kv_capacity_tokens: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


BATCHED_TOKENS = (2048, 4096, 8192, 16_384)
"""What engines usually compute in a step; which it is shows in prompts that queue up."""


class GroupError(msgspec.Struct, frozen=True):
    """How far simulated figures of a group are from the measured ones, as shares."""

    group: Group
    figures: int
    median: float
    p90: float


class Fit(msgspec.Struct, frozen=True):
    """A timing model, the engine it is of, and its error by group; `unknown`: coefficients that
    nothing was measured for."""

    timing: TimingModel
    engine: Engine
    errors: list[GroupError]
    unknown: list[str]


def fit(measured: Sequence[Measurement], engine: Engine) -> Fit:
    """The timing model, and the step size of BATCHED_TOKENS, that explain the measurements best."""
    typical = [(m.experiment, m.typical()) for m in measured]
    groups = {m.experiment.group for m in measured}
    unknown = [name for name, group in _KNOWN_FROM.items() if group not in groups]
    start = np.log(np.maximum(_guess(typical), _TINY))
    found: list[tuple[float, int, Vector]] = []
    for tokens in BATCHED_TOKENS:
        sized = msgspec.structs.replace(engine, max_num_batched_tokens=tokens)
        best, error = _minimise(start, partial(_residuals, typical=typical, engine=sized))
        found.append((error, tokens, best))
    _, tokens, best = min(found, key=lambda each: each[:2])
    engine = msgspec.structs.replace(engine, max_num_batched_tokens=tokens)
    timing = _model(best, engine)
    return Fit(timing, engine, list(_errors(typical, timing, engine)), unknown)


def _guess(typical: Sequence[tuple[Experiment, Times]]) -> Vector:
    """Rough coefficients from the lone prompts and the smallest batch."""
    lone = [(e.asks[0].new, t.ttft_ms[0]) for e, t in typical if e.group == "lone"] or [(1, 1.0)]
    (short, least_ms), (long, most_ms) = min(lone), max(lone)
    per_token = max((most_ms - least_ms) / max(long - short, 1), 1e-4)
    steps = [t.tpot_ms[0] for e, t in typical if e.group == "decode" and len(e.asks) == 1]
    step_ms = min(steps, default=least_ms)
    fixed_ms = least_ms / 2
    return np.array(
        [fixed_ms, per_token, per_token / long / 10, step_ms * 0.8, step_ms / 10, step_ms / 50,
         step_ms / 20 / long, fixed_ms, 0.9]
    )  # fmt: skip


def _model(x: Vector, engine: Engine) -> TimingModel:
    value = {
        name: (0.0 if number < 2 * _TINY else number)
        for name, number in zip(NAMES, np.exp(x).tolist(), strict=True)
    }
    return TimingModel(
        prefill=Prefill(value["c0"], value["c1"], value["c2"]),
        decode=Decode(value["d0"], value["ds"], value["d1"], value["dk"]),
        kv_capacity_tokens=engine.kv_capacity_tokens,
        source="",
        ttft_overhead_ms=value["ttft_overhead_ms"],
        interference=value["interference"],
    )


def _minimise(x: Vector, residuals: _Residuals) -> tuple[Vector, float]:
    """Levenberg-Marquardt from x; where it ends, and the sum of squares there."""
    damping = _DAMPING
    current = residuals(x)
    for _ in range(ROUNDS):
        slopes = _jacobian(x, current, residuals)
        normal, gradient = slopes.T @ slopes, slopes.T @ current
        before = float(current @ current)
        for _ in range(8):
            lifted = normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(len(x)))
            step = np.clip(np.linalg.solve(lifted, -gradient), -1.0, 1.0)
            moved = np.clip(x + step, math.log(_TINY), _LOG_RANGE)
            after = residuals(moved)
            if float(after @ after) < before:
                x, current, damping = moved, after, damping / 3
                break
            damping *= 4
        else:
            break
        if before - float(current @ current) < _SETTLED * before:
            break
    return x, float(current @ current)


def _jacobian(x: Vector, at: Vector, residuals: _Residuals) -> Vector:
    columns = []
    for index in range(len(x)):
        moved = x.copy()
        moved[index] += _STEP
        columns.append((residuals(moved) - at) / _STEP)
    return np.array(columns).T


def _residuals(x: Vector, typical: Sequence[tuple[Experiment, Times]], engine: Engine) -> Vector:
    timing = _model(x, engine)
    found: list[float] = []
    for experiment, times in typical:
        simulated = simulate(experiment, timing, engine)
        found += _group_residuals(simulated, times)
    return np.array(found)


def _group_residuals(simulated: Times, measured: Times) -> list[float]:
    """Of one experiment; each kind of figure counts once, however many requests there are."""
    found: list[float] = []
    for ours, theirs in (
        (simulated.ttft_ms, measured.ttft_ms),
        (simulated.tpot_ms, measured.tpot_ms),
    ):
        weight = 1.0 / math.sqrt(max(len(theirs), 1))
        found += [weight * math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return found


def simulate(experiment: Experiment, timing: TimingModel, engine: Engine) -> Times:
    """What an engine with this timing model would show."""
    options = ReplicaOptions(
        block_size=engine.block_tokens,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=max(engine.max_num_batched_tokens, engine.max_num_seqs),
        kv_capacity_tokens=engine.kv_capacity_tokens,
    )
    replica = Replica(timing, options)
    start_ms = _warmed(replica, experiment, engine)
    happened = []
    sent: dict[str, float] = {}
    for number, ask in enumerate(experiment.asks):
        at_ms = sent[str(number)] = start_ms + ask.at_ms
        happened += replica.advance(at_ms)
        request = ReplicaRequest(
            str(number), ask.prefix + ask.new, ask.output, _blocks(ask, engine, number)
        )
        replica.submit(request, at_ms)
    happened += _drained(replica)
    first = {e.id: e.at_ms for e in happened if isinstance(e, FirstToken)}
    last = {e.id: e.at_ms for e in happened if isinstance(e, Finished)}
    return times([(first[n] - at_ms, last[n] - first[n]) for n, at_ms in sent.items()], experiment)


def _warmed(replica: Replica, experiment: Experiment, engine: Engine) -> float:
    """Put prefixes into the cache; when that is done."""
    for number, ask in enumerate(experiment.asks):
        if ask.prefix:
            blocks = _blocks(ask, engine, number)
            replica.submit(ReplicaRequest(f"warm{number}", ask.prefix, 1, blocks), 0.0)
    done = [e.at_ms for e in _drained(replica) if isinstance(e, Finished)]
    return max(done, default=0.0)


def _drained(replica: Replica) -> list[Happening]:
    """All that is still to happen."""
    happened = []
    while (at_ms := replica.next_change_ms()) is not None:
        happened += replica.advance(at_ms)
    return happened


def _blocks(ask: Ask, engine: Engine, number: int) -> list[int]:
    return [(number + 1) * 1_000_003 + i for i in range(ask.prefix // engine.block_tokens)]


def times(figures: Sequence[tuple[float, float]], experiment: Experiment) -> Times:
    """Of (TTFT, time from the first to the last token) in ms, in the order of the asks."""
    tpots = [
        decode_ms / (ask.output - 1)
        for (_, decode_ms), ask in zip(figures, experiment.asks, strict=True)
        if ask.output > 1
    ]
    return Times(tuple(sorted(ttft for ttft, _ in figures)), tuple(sorted(tpots)))


def _errors(
    typical: Sequence[tuple[Experiment, Times]], timing: TimingModel, engine: Engine
) -> list[GroupError]:
    found: dict[Group, list[float]] = {}
    for experiment, measured in typical:
        simulated = simulate(experiment, timing, engine)
        pairs = zip(
            (*simulated.ttft_ms, *simulated.tpot_ms),
            (*measured.ttft_ms, *measured.tpot_ms),
            strict=True,
        )
        found.setdefault(experiment.group, []).extend(abs(a / b - 1.0) for a, b in pairs)
    return [
        GroupError(group, len(e), float(np.median(e)), float(np.quantile(e, 0.9)))
        for group, e in found.items()
    ]
