"""From a profile's words to objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infctl import compose
from infctl.errors import InputError
from infctl.profile.model import PluginRef, Profile


def profile(**parts: Any) -> Profile:
    base = {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
    return Profile.model_validate(base | parts)


def test_every_registered_plugin_loads_and_says_what_it_is() -> None:
    rows = compose.catalogue()
    assert {row.seam for row in rows} == set(compose.SEAMS)
    assert [row for row in rows if not row.summary] == []


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(InputError) as caught:
        compose.load("picker", "round-robbin")
    assert "Did you mean 'round-robin'?" in str(caught.value)
    with pytest.raises(InputError, match="there is no policy 'prefx-affinity'"):
        compose.with_policy(profile(), "prefx-affinity")


def test_a_plugin_by_import_path_and_plugin_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_routing.py").write_text(
        "class Magic:\n"
        "    uses_scores = False\n"
        "    def pick(self, scores, fleet, random):\n"
        "        return 0\n"
        "class Half:\n"
        "    pass\n"
    )
    monkeypatch.setenv("INFCTL_PLUGIN_PATH", str(tmp_path))
    assert type(compose.load("picker", "acme_routing:Magic")).__name__ == "Magic"
    with pytest.raises(InputError, match="is not a picker"):
        compose.load("picker", "acme_routing:Half")
    with pytest.raises(InputError, match="cannot be imported"):
        compose.load("picker", "acme_routing:Nope")
    with pytest.raises(InputError, match="cannot be imported"):
        compose.load("picker", "acme_nowhere:Nope")


def test_the_baseline_differs_in_the_picker_alone() -> None:
    own = profile(routing={"attempts_max": 2, "scorers": [{"type": "queue-depth", "limit": 9}]})
    baseline = compose.with_policy(own, "round-robin")
    after = baseline.routing.model_dump()
    differing = {k for k, v in own.routing.model_dump().items() if after[k] != v}
    assert differing == {"picker"}
    assert compose.policy_name(baseline) == "round-robin"
    assert compose.policy_name(own) == "queue-depth"


def test_policies_by_scorer_name() -> None:
    pipeline = compose.pipeline(compose.with_policy(profile(), "prefix-affinity"))
    assert pipeline.name == "prefix-affinity"
    assert [w.name for w in pipeline.scorers] == ["prefix-affinity"]
    assert compose.pipeline(compose.with_policy(profile(), "kv-usage")).name == "kv-usage"


def test_weights_and_parameters_reach_the_plugin() -> None:
    ref = PluginRef(type="queue-depth", weight=2.5, limit=7)  # type: ignore[call-arg]
    own = profile(routing={"scorers": [ref.model_dump()]})
    (weighted,) = compose.pipeline(own).scorers
    assert (weighted.weight, weighted.scorer.limit) == (2.5, 7)  # type: ignore[attr-defined]


def test_units_of_a_profile() -> None:
    own = profile(
        models=[{"name": "m", "aliases": ["n"], "timing": "deepseek-v3-8xh200-tp8"}],
        pools=[{"name": "a", "units": {"ready": 2}}, {"name": "b"}],
        clusters=[{"name": "east", "rtt_ms": 3.0}],
    )
    units = compose.desired_units(own, speed=4.0)
    assert [u.name for u in units] == ["a-0", "a-1", "b-0"]
    assert units[0].models == ("m", "n")
    assert (units[0].rtt_ms, units[0].spec.speed) == (3.0, 4.0)
    assert units[0].spec.timing is not None
    assert len({u.revision for u in units}) == 1
    (other,) = compose.desired_units(own, speed=5.0)[2:]
    assert other.revision != units[0].revision
    assert compose.desired_units(own, speed=4.0) == units


def test_emulating_another_engine_keeps_what_means_the_same() -> None:
    own = profile(
        models=[{"name": "m", "timing": "qwen3-8b-bf16-1xh100"}],
        engine={
            "type": "sglang",
            "args": {"page_size": 64, "max_running_requests": 48, "mem_fraction_static": 0.9},
            "env": {"CUDA_X": "1"},
        },
    )
    (unit,) = compose.desired_units(own, emulate=True)
    assert (unit.engine, unit.spec.dialect, unit.spec.env) == ("emulated", "sglang", {})
    assert unit.spec.args == {"block_size": 64, "max_num_seqs": 48}


def test_what_cannot_be_emulated_says_so() -> None:
    with pytest.raises(InputError, match="has no timing model"):
        compose.desired_units(profile())
    with pytest.raises(InputError, match="Did you mean 'qwen3-8b-bf16-1xh100'"):
        compose.timing("qwen3-8b-bf16-1xh10")


def test_the_route_table_weighs_pools_by_units() -> None:
    own = profile(pools=[{"name": "a", "units": {"ready": 3}}, {"name": "b"}])
    rows = compose.route_table(own)
    assert [(r.model, r.bucket, r.pool, r.weight) for r in rows] == [
        ("m", "all", "a", 0.75),
        ("m", "all", "b", 0.25),
    ]
    assert rows[0].endpoints == ("a-0", "a-1", "a-2")
