"""Simulated runs against what can be worked out by hand, and against themselves."""

from __future__ import annotations

from statistics import median

import msgspec
import pytest

from infctl import compose
from infctl.errors import InputError
from infctl.profile.model import Profile
from infctl.runs.spec import Measured, RunSpec
from infctl.sim.readings import unloaded_ttft_ms
from infctl.sim.run import prepare, simulate

TIMING = compose.timing("qwen3-8b-bf16-1xh100")


def spec(workload: str = "conversation", **fields: object) -> RunSpec:
    return msgspec.structs.replace(RunSpec(url="", workload=workload), **fields)


def test_a_lonely_request_takes_what_the_timing_model_says(fleet, trace) -> None:
    found = simulate(fleet(units=1), spec(trace((0.0, [(1, 1000)], 11))))
    (sample,) = found.samples
    assert sample.ttft_ms == pytest.approx(unloaded_ttft_ms(TIMING, 1000, 8192))
    steps_ms = sum(TIMING.decode_step_ms(1, 1001 + i) for i in range(10))
    assert sample.tpot_ms == pytest.approx(steps_ms / 10)
    assert (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens) == (1000, 0, 11)
    assert sample.endpoint == "p-0"


def test_a_second_turn_hits_the_first_ones_blocks(fleet, trace) -> None:
    path = trace((0.0, [(1, 1600)], 2), (60.0, [(1, 1600), (2, 400)], 2))
    first, second = simulate(fleet(), spec(path)).samples
    assert (first.cached_tokens, second.cached_tokens) == (0, 1600)
    assert first.endpoint == second.endpoint


def test_the_same_seed_gives_the_same_run(fleet) -> None:
    runs = [simulate(fleet(), spec(limit=150, seed=seed)) for seed in (3, 3, 4)]
    assert runs[0].samples == runs[1].samples
    assert runs[0].samples != runs[2].samples


def test_a_prepared_workload_can_be_run_again(fleet) -> None:
    asked = spec(limit=100)
    prepared = prepare(fleet(), asked)
    one, other = (simulate(fleet(), asked, prepared).samples for _ in range(2))
    assert one == other == simulate(fleet(), asked).samples


def test_rate_scale_brings_arrivals_closer(fleet, trace) -> None:
    path = trace((0.0, [(1, 100)], 2), (10.0, [(2, 100)], 2))
    samples = simulate(fleet(), spec(path, rate_scale=4.0)).samples
    assert [s.sent_s for s in samples] == [0.0, 2.5]


def test_so_many_requests_are_kept_open(fleet) -> None:
    found = simulate(fleet(units=1), spec(limit=200, concurrency=8))
    assert len(found.samples) == 200
    starts = sorted(s.sent_s for s in found.samples)
    assert starts[7] == 0.0 < starts[8]
    ends = sorted(s.sent_s + (s.e2e_ms or 0.0) / 1000.0 for s in found.samples)
    for index, at_s in enumerate(starts[8:]):
        assert at_s == pytest.approx(ends[index])


def test_what_the_router_hears_is_a_round_trip_old(fleet, trace) -> None:
    near = fleet()
    document = near.model_dump() | {"clusters": [{"name": "local", "rtt_ms": 40.0}]}
    far = Profile.model_validate(document)
    path = trace((0.0, [(1, 1000)], 3))
    (one,), (other,) = (simulate(p, spec(path)).samples for p in (near, far))
    assert (other.ttft_ms or 0.0) - (one.ttft_ms or 0.0) == pytest.approx(40.0)
    assert other.tpot_ms == pytest.approx(one.tpot_ms or 0.0)


def test_policies_need_not_know_the_coefficients(fleet) -> None:
    """Twice as slow engines under half the load: everything takes twice as long, and choices are
    the same as far as the clock of scrapes allows."""
    asked = spec("code", limit=400, seed=1)
    usual = simulate(fleet(units=4), asked)
    slow = _slower(fleet(units=4), asked)
    assert _median_ttft(slow) == pytest.approx(2 * _median_ttft(usual), rel=0.1)
    assert _hit_rate(slow) == pytest.approx(_hit_rate(usual), abs=0.03)


def _slower(profile: Profile, asked: RunSpec) -> Measured:
    from infctl.sim import fleet as fleet_module

    prepared = prepare(profile, asked)
    plain = fleet_module.units

    def doubled(profile: Profile, hash_blocks: int = 1) -> list[fleet_module.Unit]:
        found = plain(profile, hash_blocks)
        for unit in found:
            timing = unit.engine.timing
            replace = msgspec.structs.replace
            unit.engine.timing = replace(
                timing,
                prefill=replace(timing.prefill, **_twice(timing.prefill)),
                decode=replace(timing.decode, **_twice(timing.decode)),
                ttft_overhead_ms=timing.ttft_overhead_ms * 2,
            )
        return found

    patch = pytest.MonkeyPatch()
    patch.setattr(fleet_module, "units", doubled)
    try:
        return simulate(profile, msgspec.structs.replace(asked, rate_scale=0.5), prepared)
    finally:
        patch.undo()


def _twice(part: msgspec.Struct) -> dict[str, float]:
    return {name: value * 2 for name, value in msgspec.structs.asdict(part).items()}


def _median_ttft(run: Measured) -> float:
    return median(s.ttft_ms for s in run.samples if s.ttft_ms is not None)


def _hit_rate(run: Measured) -> float:
    prompt = sum(s.prompt_tokens or 0 for s in run.samples)
    return sum(s.cached_tokens or 0 for s in run.samples) / prompt


def test_overload_ends_with_a_verdict(fleet, trace) -> None:
    rows = [(i * 0.001, [(i, 2000)], 2000) for i in range(1500)]
    hold_nothing = fleet(units=1, args={"max_num_seqs": 4, "max_num_batched_tokens": 64})
    found = simulate(hold_nothing, spec(trace(*rows)))
    assert len(found.samples) == 1500
    assert any(s.error for s in found.samples)


def test_a_load_that_never_drains_is_cut_off(fleet, trace) -> None:
    rows = [(i * 0.001, [(i, 1000)], 5000) for i in range(1500)]
    slow = fleet(units=1, args={"max_num_seqs": 2}, flow={"queue_s": 3600.0})
    found = simulate(slow, spec(trace(*rows)))
    assert len(found.samples) == 1500
    assert {s.error for s in found.samples} == {"", "not finished"}
    assert "the fleet cannot keep up with this load" in found.notes[-1]


def test_a_request_that_memory_can_never_hold_fails(fleet, trace) -> None:
    path = trace((0.0, [(1, 5000)], 10), (1.0, [(2, 500)], 10))
    found = simulate(fleet(args={"kv_capacity_tokens": 4096}), spec(path))
    assert sorted(s.error for s in found.samples) == ["", "HTTP 400"]


def test_engines_that_cannot_be_simulated_say_why(fleet) -> None:
    with pytest.raises(InputError, match="max_num_batched_tokens"):
        simulate(fleet(args={"max_num_batched_tokens": 2, "max_num_seqs": 4}), spec(limit=5))
    with pytest.raises(InputError, match="twice"):
        simulate(fleet(hedge_share=0.1), spec(limit=5))


def test_ticks_count_all_tokens(fleet) -> None:
    found: Measured = simulate(fleet(), spec("code", limit=200))
    tokens = [tick.tokens for tick in found.ticks]
    assert tokens == sorted(tokens)
    assert tokens[-1] <= sum(s.output_tokens for s in found.samples)
    assert found.simulated
