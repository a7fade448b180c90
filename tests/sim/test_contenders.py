"""Who is compared, with which parameters and under which conditions."""

from __future__ import annotations

import pytest

from infctl import compose
from infctl.errors import InputError
from infctl.sim import contenders


@pytest.mark.parametrize("policy", contenders.rivals())
def test_a_grid_starts_with_what_was_published(fleet, policy: str) -> None:
    found = contenders.variants(fleet(), policy)
    assert found[0].parameters == {}
    assert found[0].name == policy
    assert len({each.name for each in found}) == len(found)
    for each in found:  # every set of parameters makes a policy, and dispatches at once
        assert compose.pipeline(each.profile).name == policy
        assert not each.profile.routing.flow.hold


def test_a_grid_holds_only_parameters_that_a_rule_has(fleet) -> None:
    for policy in contenders.rivals():
        fields = set(compose.find("scorer", policy).__struct_fields__)
        published = contenders.variants(fleet(), policy)
        assert {key for each in published for key in each.parameters} <= fields


def test_the_published_values_are_the_plugins_defaults(fleet) -> None:
    for policy in contenders.rivals():
        default = compose.load("scorer", policy)
        for key, values in contenders.grid(policy).items():
            assert getattr(default, key) == values[0], f"{policy}.{key}"


def test_llm_d_reads_metrics_as_often_as_its_own_picker(fleet) -> None:
    (first, *_) = contenders.variants(fleet(), "llm-d-default")
    assert first.profile.routing.health.interval_s == 0.05
    (other, *_) = contenders.variants(fleet(), "least-request")
    assert other.profile.routing.health.interval_s == fleet().routing.health.interval_s


def test_the_own_policy_keeps_its_profile(fleet) -> None:
    profile = fleet(scorers=["queue-depth"])
    assert contenders.own(profile).profile is profile
    assert contenders.own(profile).policy == "queue-depth"
    assert contenders.baseline(profile).policy == "round-robin"


def test_any_policy_may_compete_as_it_is(fleet) -> None:
    (only,) = contenders.variants(fleet(), "queue-depth")
    assert only.profile.routing.flow.hold
    with pytest.raises(InputError, match="no policy"):
        contenders.variants(fleet(), "nonsense")
