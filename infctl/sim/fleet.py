"""The simulated fleet: a replica for every unit of a profile, and what a router knows of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from infctl import compose
from infctl.core.fleet import Endpoint, Load
from infctl.errors import InputError
from infctl.replica import Replica, ReplicaOptions

if TYPE_CHECKING:
    from infctl.actuator import DesiredUnit
    from infctl.profile.model import Profile


class Unit(msgspec.Struct):
    """A unit: its endpoint, and the engine there in virtual time."""

    endpoint: Endpoint
    engine: Replica
    kv_capacity_tokens: int

    def load(self, now_ms: float) -> Load:
        """What a scrape of its metrics says."""
        seen = self.engine.load(now_ms)
        return Load(
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            kv_capacity_tokens=self.kv_capacity_tokens,
            prompt_tokens_total=seen.prompt_tokens_total,
            generation_tokens_total=seen.generation_tokens_total,
            cached_tokens_total=seen.cached_tokens_total,
            preemptions_total=seen.preemptions_total,
        )


def endpoint_names(profile: Profile) -> list[str]:
    """What the profile's endpoints are called."""
    return [each.name for each in compose.desired_units(profile, emulate=True)]


def resized(profile: Profile, total: int) -> Profile:
    """The profile with so many units in all, in the pools' proportions (largest remainders); every
    pool that has units keeps one. Raises InputError where there are fewer units than such pools."""
    ready = [pool.units.ready for pool in profile.pools]
    before = sum(ready)
    kept = sum(1 for count in ready if count)
    if not before or total < kept:
        raise InputError(
            f"{total} units cannot keep the proportions of {kept} pools with {before} units",
            where="--units",
            hint=f"Give at least {max(kept, 1)}." if before else "No pool has a unit.",
        )
    shares = [max(total * count / before, 1.0 if count else 0.0) for count in ready]
    counts = [math.floor(share) for share in shares]
    by_rest = sorted(range(len(counts)), key=lambda i: counts[i] - shares[i])
    for index in by_rest[: max(total - sum(counts), 0)]:
        counts[index] += 1
    while sum(counts) > total:
        counts[max(range(len(counts)), key=counts.__getitem__)] -= 1
    pools = [
        pool.model_copy(update={"units": pool.units.model_copy(update={"ready": count})})
        for pool, count in zip(profile.pools, counts, strict=True)
    ]
    return profile.model_copy(update={"pools": pools})


def block_size(profile: Profile) -> int:
    """Tokens in a KV block of the profile's engines."""
    return _options(compose.desired_units(profile, emulate=True)[0]).block_size


def chunk_tokens(profile: Profile) -> int:
    """Tokens that the profile's engines compute in a step."""
    return _options(compose.desired_units(profile, emulate=True)[0]).max_num_batched_tokens


def units(profile: Profile, hash_blocks: int = 1) -> list[Unit]:
    """The profile's units, emulated. Raises InputError for a model without a timing model."""
    return [_unit(each, hash_blocks) for each in compose.desired_units(profile, emulate=True)]


def _unit(desired: DesiredUnit, hash_blocks: int) -> Unit:
    spec, options = desired.spec, _options(desired)
    assert spec.timing is not None
    capacity = options.kv_capacity_tokens or spec.timing.kv_capacity_tokens
    options = msgspec.structs.replace(options, hash_blocks=hash_blocks, kv_capacity_tokens=capacity)
    try:
        engine = Replica(spec.timing, options)
    except ValueError as error:
        raise InputError(f"the engine cannot be simulated: {error}", where="engine.args") from error
    endpoint = Endpoint(
        unit=desired.name,
        url="",
        models=desired.models,
        revision=desired.revision,
        role=desired.role,
        pool=desired.pool,
        cluster=desired.cluster,
        engine=desired.engine,
        rtt_ms=desired.rtt_ms,
        context_tokens=spec.context_tokens or 0,
    )
    return Unit(endpoint, engine, capacity)


def _options(desired: DesiredUnit) -> ReplicaOptions:
    """The engine's arguments, as far as they are a replica's."""
    args = dict(desired.spec.args)
    if "enable_prefix_caching" in args:
        args["prefix_caching"] = args.pop("enable_prefix_caching")
    known = {k: v for k, v in args.items() if k in ReplicaOptions.__struct_fields__}
    try:
        return msgspec.convert(known, ReplicaOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"the engine cannot be simulated: {error}", where="engine.args") from error
