"""Units of a profile, and how many."""

from __future__ import annotations

import pytest

from infctl.errors import InputError
from infctl.profile.model import Profile
from infctl.sim.fleet import block_size, endpoint_names, resized, units


def profile(*ready: int) -> Profile:
    pools = [{"name": f"p{i}", "units": {"ready": count}} for i, count in enumerate(ready)]
    return Profile.model_validate(
        {
            "metadata": {"name": "x"},
            "models": [{"name": "m", "timing": "qwen3-8b-bf16-1xh100"}],
            "pools": pools,
        }
    )


@pytest.mark.parametrize(
    ("before", "total", "after"),
    [
        ((4,), 8, [8]),
        ((4, 2), 12, [8, 4]),
        ((4, 2), 7, [5, 2]),
        ((1, 9), 5, [1, 4]),
        ((1, 1, 98), 3, [1, 1, 1]),
        ((3, 0), 6, [6, 0]),
        ((1, 1, 1), 1000, [334, 333, 333]),
    ],
)
def test_pools_keep_their_proportions(before, total, after) -> None:
    assert [pool.units.ready for pool in resized(profile(*before), total).pools] == after


def test_too_few_units_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        resized(profile(4, 4), 1)


def test_units_are_what_the_profile_says() -> None:
    found = units(profile(2, 1), hash_blocks=4)
    assert (
        [u.endpoint.id for u in found] == endpoint_names(profile(2, 1)) == ["p0-0", "p0-1", "p1-0"]
    )
    assert found[0].engine.options.hash_blocks == 4
    load = found[0].load(0.0)
    assert (load.running, load.waiting, load.kv_usage) == (0, 0, 0.0)
    assert load.kv_capacity_tokens == found[0].engine.timing.kv_capacity_tokens
    assert block_size(profile(1)) == 16
