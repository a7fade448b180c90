"""The comparison: every contender at its best parameters, over the workloads at hand.

Runs are independent, so they are spread over processes, forked once the workload is read.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.sim import contenders
from infctl.sim.arena import Arena, Reading
from infctl.sim.contenders import Contender
from infctl.sim.run import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from infctl.profile.model import Profile
    from infctl.runs.spec import RunSpec

SCHEMA_VERSION = 1
LOADS = (0.3, 0.5, 0.7, 0.9, 1.0, 1.1)


class Standing(msgspec.Struct, frozen=True):
    """A policy at its best parameters: capacities as rate scales, and a reading per load."""

    policy: str
    parameters: dict[str, Any]
    tried: int
    capacity: float
    plain_capacity: float
    readings: list[Reading]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One workload. The first standing is the profile's own policy; `saturation` is round-robin's,
    as a rate scale, and `loads` are shares of it."""

    schema_version: int
    workload: str
    profile: str
    units: int
    requests: int
    requests_per_s: float
    seed: int
    saturation: float
    loads: list[float]
    standings: list[Standing]
    notes: list[str]
    command: str = ""


class _Task(msgspec.Struct, frozen=True):
    contender: int
    saturation: float
    rate_scale: float = 0.0


_arena: Arena | None = None
_field: list[Contender] = []


def compare(
    profile: Profile,
    spec: RunSpec,
    policies: Sequence[str],
    jobs: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """The profile's own policy, round-robin and the named ones over a spec's workload. Raises
    InputError."""
    global _arena, _field
    prepared = prepare(profile, spec)
    _arena = arena = Arena(profile, spec, prepared)
    field = [contenders.own(profile), arena.base]
    for policy in policies:
        field += contenders.variants(profile, policy)
    _field = field
    progress("round-robin's saturation")
    saturation = arena.saturation()
    requests = prepared.plan.requests
    span_s = requests[-1].at_s - requests[0].at_s
    try:
        with _pool(jobs) as pool:
            standings = _standings(pool, field, saturation, progress)
    finally:
        _arena, _field = None, []
    return Comparison(
        schema_version=SCHEMA_VERSION,
        workload=spec.workload,
        profile=profile.metadata.name,
        units=sum(pool.units.ready for pool in profile.pools),
        requests=len(requests),
        requests_per_s=len(requests) / span_s if span_s else 0.0,
        seed=spec.seed,
        saturation=saturation,
        loads=list(LOADS),
        standings=standings,
        notes=list(prepared.plan.notes),
    )


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"))


def _standings(
    pool: ProcessPoolExecutor,
    field: list[Contender],
    saturation: float,
    progress: Callable[[str], None],
) -> list[Standing]:
    ranks: list[tuple[float, float]] = []
    tasks = [_Task(index, saturation) for index in range(len(field))]
    for contender, found in zip(field, pool.map(_rank, tasks), strict=True):
        progress(f"{contender.name}: passes at load {found[0]:.1f}")
        ranks.append(found)
    best = list(_best(field, ranks))
    capacities = list(pool.map(_capacities, [_Task(index, saturation) for index in best]))
    tasks = [_Task(i, saturation, round(load * saturation, 4)) for i in best for load in LOADS]
    found_readings = iter(pool.map(_reading, tasks))
    standings = []
    for index, (full, plain) in zip(best, capacities, strict=True):
        contender = field[index]
        progress(f"{contender.name}: latency at {len(LOADS)} loads")
        standings.append(
            Standing(
                policy=contender.policy,
                parameters=contender.parameters,
                tried=sum(1 for each in field if each.policy == contender.policy),
                capacity=full,
                plain_capacity=plain,
                readings=[next(found_readings) for _ in LOADS],
            )
        )
    return standings


def _best(field: list[Contender], ranks: list[tuple[float, float]]) -> Iterator[int]:
    """The index of each policy's highest-ranking parameters, in the field's order; between equals
    the published ones win."""
    chosen: dict[str, int] = {}
    for index, contender in enumerate(field):
        before = chosen.get(contender.policy)
        if before is None or ranks[index] > ranks[before]:
            chosen[contender.policy] = index
    yield from chosen.values()


def _rank(task: _Task) -> tuple[float, float]:
    assert _arena is not None
    return _arena.rank(_field[task.contender], task.saturation)


def _capacities(task: _Task) -> tuple[float, float]:
    assert _arena is not None
    contender = _field[task.contender]
    full = _arena.capacity(contender, task.saturation)
    return full, _arena.capacity(contender, task.saturation, plain=True)


def _reading(task: _Task) -> Reading:
    assert _arena is not None
    return _arena.read(_field[task.contender], task.rate_scale)
