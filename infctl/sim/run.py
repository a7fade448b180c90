"""One simulated run: a profile, a workload, and what a client would have measured."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from infctl import compose
from infctl.core.director import Director
from infctl.core.prefix import prefix_seed
from infctl.errors import InputError
from infctl.runs.spec import Measured, RunSpec
from infctl.runs.workloads import Plan, fit, load_requests
from infctl.settings import director_settings
from infctl.sim import fleet, prompts
from infctl.sim.driver import NOT_FINISHED, Arrival, Simulation
from infctl.workload.prefix import hit_ceiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from infctl.profile.model import Profile
    from infctl.workload.model import WorkloadRequest

_TICKS = 120
_KEPT_MAX = 100_000
"""Requests whose hashes are kept for the next run; those of a million take two gigabytes."""

_DRAIN_S_MIN = 600.0
_DRAIN_SHARE = 2.0
"""What is not finished so long after the last arrival (or twice the time of all arrivals, if that
is longer) never will be worth waiting for: the fleet cannot keep up."""


class Prepared(msgspec.Struct, frozen=True):
    """A workload ready to be simulated any number of times: `arrivals` gives the requests anew."""

    plan: Plan
    model: str
    hash_blocks: int
    prefix_ceiling: float
    arrivals: Callable[[], Iterator[Arrival]]

    @property
    def last_ms(self) -> float:
        """The last arrival, at rate scale 1."""
        return self.plan.requests[-1].at_s * 1000.0


def prepare(profile: Profile, spec: RunSpec) -> Prepared:
    """Read a spec's workload and hash its prompts. Raises InputError."""
    requests, notes = load_requests(spec)
    plan = fit(spec, requests, notes, profile.models[0].context_tokens)
    model, size = profile.models[0].name, fleet.block_size(profile)
    hash_blocks = prompts.hash_blocks(plan.requests, size)
    seed = prefix_seed(model, "", "", "", "")

    def arrivals() -> Iterator[Arrival]:
        for number, request in enumerate(plan.requests):
            yield _arrival(request, number, seed, size * hash_blocks)

    if len(plan.requests) <= _KEPT_MAX:
        kept = list(arrivals())
        arrivals = kept.__iter__
    return Prepared(plan, model, hash_blocks, round(hit_ceiling(plan.requests), 5), arrivals)


def simulate(
    profile: Profile, spec: RunSpec, prepared: Prepared | None = None, *, tell_output: bool = True
) -> Measured:
    """Run a spec's workload through the profile's fleet and policy. Raises InputError.

    Requests say how many tokens they want, as the load generator's do; without `tell_output` the
    router has to guess, as with most clients.
    """
    if profile.routing.hedge_share:
        raise InputError(
            "the simulator does not send requests twice",
            where="routing.hedge_share",
            hint="Set it to 0: --set routing.hedge_share=0.",
        )
    prepared = prepared or prepare(profile, spec)
    started_s = perf_counter()
    simulation = _simulation(profile, spec, prepared)
    simulation.tells_output = tell_output
    last_ms = prepared.last_ms / spec.rate_scale
    tick_ms = max(last_ms / _TICKS, 1000.0)
    with _no_collector():
        if spec.concurrency:
            simulation.closed_loop(prepared.arrivals(), spec.concurrency, tick_ms, float("inf"))
        else:
            end_ms = last_ms + max(_DRAIN_S_MIN * 1000.0, last_ms * _DRAIN_SHARE)
            simulation.open_loop(prepared.arrivals(), spec.rate_scale, tick_ms, end_ms)
    return _measured(prepared, simulation, perf_counter() - started_s)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Nothing here makes cycles, and looking for them takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _simulation(profile: Profile, spec: RunSpec, prepared: Prepared) -> Simulation:
    routing = profile.routing
    settings = director_settings(routing, 1.0)
    return Simulation(
        Director(compose.pipeline(profile), Random(spec.seed), settings),
        fleet.units(profile, prepared.hash_blocks),
        prepared.model,
        routing.health.interval_s * 1000.0,
        Random(spec.seed + 1),
    )


def _arrival(request: WorkloadRequest, number: int, seed: int, hash_tokens: int) -> Arrival:
    tokens = request.input_tokens
    return Arrival(
        at_ms=request.at_s * 1000.0,
        prompt_tokens=tokens,
        output_tokens=request.output_tokens,
        prompt_bytes=tokens * prompts.BYTES_PER_TOKEN,
        blocks=prompts.router_blocks(request.prompt, seed),
        engine_blocks=prompts.engine_blocks(request, hash_tokens, number),
        session=request.session,
    )


def _measured(prepared: Prepared, simulation: Simulation, wall_s: float) -> Measured:
    unfinished = sum(1 for s in simulation.samples if s.error == NOT_FINISHED)
    notes = list(prepared.plan.notes)
    if unfinished:
        notes.append(
            f"{unfinished} of {len(simulation.samples)} requests were not finished long after the "
            "last arrival: the fleet cannot keep up with this load."
        )
    return Measured(
        samples=simulation.samples,
        ticks=simulation.ticks,
        skipped=prepared.plan.skipped,
        model=prepared.model,
        bytes_per_token=prompts.BYTES_PER_TOKEN,
        prefix_ceiling=prepared.prefix_ceiling,
        notes=notes,
        lag_ms_p50=0.0,
        lag_ms_p99=0.0,
        cpu_share=0.0,
        wall_s=round(wall_s, 3),
        negative_ttft=0,
        connections=0,
        simulated=True,
    )
