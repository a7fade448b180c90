"""Who is compared: the profile's own policy, and rules that others have published.

A rule gets its best parameters from a small grid around the published ones (the first of each
list), and the conditions of its own router: it dispatches at once and never lets a request wait
(`flow.hold`), and sees engines' metrics as often as its authors' does.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from infctl import compose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infctl.profile.model import Profile

BASELINE = "round-robin"

_GRIDS: dict[str, dict[str, list[Any]]] = {
    "least-request": {},
    "bounded-load-hash": {
        "load_factor": [1.25, 1.1, 2.0],
        "prefix_bytes": [256, 4096, 8192, 65_536],
    },
    "sglang-cache-aware": {
        "cache_threshold": [0.3, 0.1, 0.5],
        "balance_abs_threshold": [64, 32, 16, 4],
        "balance_rel_threshold": [1.5, 1.1],
    },
    "llm-d-default": {
        "prefix_weight": [3.0, 1.0, 6.0],
        "queue_weight": [2.0, 4.0],
        "kv_weight": [2.0, 4.0, 0.5],
    },
    "dynamo-cost": {"overlap_weight": [1.0, 0.5, 2.0, 4.0, 8.0]},
}
_INTERVAL_S = {"llm-d-default": 0.05}
"""llm-d's endpoint picker reads metrics every 50 ms by default."""


class Contender(msgspec.Struct, frozen=True):
    """A policy with one set of parameters, as a whole profile."""

    policy: str
    parameters: dict[str, Any]
    profile: Profile

    @property
    def name(self) -> str:
        """The policy and what of it differs from its defaults."""
        said = ", ".join(f"{k} {v:g}" for k, v in self.parameters.items())
        return f"{self.policy} ({said})" if said else self.policy


def own(profile: Profile) -> Contender:
    """The profile as it is."""
    return Contender(compose.policy_name(profile), {}, profile)


def baseline(profile: Profile) -> Contender:
    """Round-robin, which everything is measured against."""
    return Contender(BASELINE, {}, _dispatching(compose.with_policy(profile, BASELINE), BASELINE))


def rivals() -> list[str]:
    """The published rules."""
    return list(_GRIDS)


def grid(policy: str) -> dict[str, list[Any]]:
    """What is tried of a rule's parameters, the published value first."""
    return _GRIDS.get(policy, {})


def variants(profile: Profile, policy: str) -> list[Contender]:
    """A rule with every set of parameters of its grid, the published one first; of another policy
    just its defaults. Raises InputError for an unknown policy."""
    return [
        Contender(policy, parameters, _with(profile, policy, parameters))
        for parameters in _combinations(grid(policy))
    ]


def _combinations(values: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for each in product(*values.values()):
        chosen = dict(zip(values, each, strict=True))
        yield {k: v for k, v in chosen.items() if v != values[k][0]}


def _with(profile: Profile, policy: str, parameters: dict[str, Any]) -> Profile:
    found = compose.with_policy(profile, policy)
    if parameters:
        scorers = [{"type": policy, **parameters}]
        routing = found.routing.model_dump() | {"scorers": scorers}
        found = type(found).model_validate(found.model_dump() | {"routing": routing})
    return _dispatching(found, policy) if policy in _GRIDS else found


def _dispatching(profile: Profile, policy: str) -> Profile:
    routing = profile.routing
    health = routing.health
    if policy in _INTERVAL_S:
        health = health.model_copy(update={"interval_s": _INTERVAL_S[policy]})
    flow = routing.flow.model_copy(update={"hold": False})
    routing = routing.model_copy(update={"flow": flow, "health": health})
    return profile.model_copy(update={"routing": routing})
