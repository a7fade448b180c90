"""The engine in time: hand-computed timings, and what must hold for any load."""

from __future__ import annotations

from typing import Any

import pytest

from infctl.replica import (
    Finished,
    FirstToken,
    Preempted,
    Replica,
    ReplicaOptions,
    ReplicaRequest,
    Resumed,
)
from infctl.replica.kvcache import BlocksStored
from infctl.timing import Decode, Prefill, TimingModel

FOREVER = 1e12


def model(**changes: Any) -> TimingModel:
    """prefill = 10 + 0.1·n; a decode step of B sequences = 4 + B."""
    fields: dict[str, Any] = {
        "prefill": Prefill(10.0, 0.1, 0.0),
        "decode": Decode(4.0, 0.0, 1.0, 0.0),
        "kv_capacity_tokens": 100_000,
        "source": "made up",
    }
    return TimingModel(**(fields | changes))


def replica(timing: TimingModel | None = None, **options: Any) -> Replica:
    """A replica with small blocks."""
    return Replica(timing or model(), ReplicaOptions(**({"block_size": 10} | options)))


def request(name: str, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> ReplicaRequest:
    """A request."""
    return ReplicaRequest(name, prompt, output, blocks)


# -- timings by hand -----------------------------------------------------------------------------


def test_one_request_alone() -> None:
    engine = replica(model(ttft_overhead_ms=50.0))
    engine.submit(request("a", 100, 4), 1000.0)
    assert engine.advance(FOREVER) == [
        FirstToken("a", 1000 + 50 + 20, 0),
        Finished("a", 1070 + 3 * 5, 4),
    ]
    assert engine.next_change_ms() is None


def test_one_token_ends_with_the_prefill() -> None:
    engine = replica()
    engine.submit(request("a", 100, 1), 0.0)
    assert engine.advance(FOREVER) == [FirstToken("a", 20.0, 0), Finished("a", 20.0, 1)]


def test_context_slows_decoding_down() -> None:
    timing = model(decode=Decode(4.0, 0.0, 1.0, 0.01))
    engine = replica(timing)
    engine.submit(request("a", 100, 3), 0.0)
    happened = engine.advance(FOREVER)
    assert happened[-1].at_ms == pytest.approx(20 + 5 + 1.01 + 5 + 1.02)


def test_quadratic_prefill_counts_the_cached_prefix() -> None:
    timing = model(prefill=Prefill(10.0, 0.1, 0.001))
    engine = replica(timing)
    engine.submit(request("a", 100, 1, tuple(range(10))), 0.0)
    assert engine.advance(FOREVER)[0].at_ms == pytest.approx(10 + 10 + 5)
    engine.submit(request("b", 100, 1, (0, 1, 2, 3, 4, 99)), 1000.0)
    assert engine.advance(FOREVER)[0] == FirstToken(
        "b", pytest.approx(1000 + 10 + 5 + 0.001 * 50 * (50 + 25)), 50
    )


def test_prefills_that_share_a_step_share_its_fixed_cost() -> None:
    engine = replica()
    engine.submit(request("a", 100, 2), 0.0)
    engine.submit(request("b", 50, 2), 0.0)
    assert engine.advance(FOREVER) == [
        FirstToken("a", 10 + 10 + 5, 0),
        FirstToken("b", 25.0, 0),
        Finished("a", 25 + 6, 2),
        Finished("b", 31.0, 2),
    ]


def test_a_batch_decodes_at_the_batch_step() -> None:
    engine = replica()
    for name in "abcd":
        engine.submit(request(name, 25, 11), 0.0)
    assert engine.advance(FOREVER)[-1].at_ms == pytest.approx(20 + 10 * (4 + 4))


def test_an_arrival_joins_at_the_next_step_boundary() -> None:
    engine = replica(model(interference=0.5))
    engine.submit(request("a", 100, 100), 0.0)
    engine.advance(37.0)  # first token at 20, steps end at 25, 30, 35, 40
    engine.submit(request("b", 100, 1), 37.0)
    assert engine.next_change_ms() == 40.0
    engine.advance(40.0)
    assert engine.tokens_done("a", 40.0) == 5
    assert engine.next_change_ms() == 40.0 + 5 + 0.5 * 20
    assert engine.advance(55.0) == [FirstToken("b", 55.0, 0), Finished("b", 55.0, 1)]
    assert engine.tokens_done("a", 55.0) == 6


def test_long_prompts_are_prefilled_in_chunks() -> None:
    engine = replica(max_num_batched_tokens=256)
    engine.submit(request("a", 600, 1), 0.0)
    chunks = [10 + 25.6, 10 + 25.6, 10 + 8.8]
    assert engine.advance(FOREVER)[0].at_ms == pytest.approx(sum(chunks))


def test_the_rest_of_a_step_goes_to_the_next_request() -> None:
    engine = replica(max_num_batched_tokens=256)
    engine.submit(request("a", 300, 1), 0.0)
    engine.submit(request("b", 300, 1), 0.0)
    first, second = 10 + 25.6, 10 + 4.4 + 21.2
    happened = [h for h in engine.advance(FOREVER) if isinstance(h, FirstToken)]
    assert [h.id for h in happened] == ["a", "b"]
    assert happened[0].at_ms == pytest.approx(first + second)
    assert happened[1].at_ms == pytest.approx(first + second + 10 + 8.8)


def test_decoding_goes_on_beside_chunks() -> None:
    engine = replica(max_num_batched_tokens=256)
    engine.submit(request("a", 100, 50), 0.0)
    engine.advance(20.0)
    engine.submit(request("b", 510, 1), 20.0)
    steps = [5 + 35.5, 5 + 35.5]  # 255 tokens beside one decoding sequence
    happened = engine.advance(25 + sum(steps))
    assert [h.id for h in happened] == ["b", "b"]
    assert engine.tokens_done("a", 25 + sum(steps)) == 4


def test_max_num_seqs_holds_requests_back() -> None:
    engine = replica(max_num_seqs=1)
    engine.submit(request("a", 100, 11), 0.0)
    engine.submit(request("b", 100, 1), 0.0)
    engine.advance(30.0)
    assert (engine.load(30.0).running, engine.load(30.0).waiting) == (1, 1)
    happened = engine.advance(FOREVER)
    assert happened[0] == Finished("a", 70.0, 11)
    assert happened[1] == FirstToken("b", 90.0, 0)


def test_overhead_occupies_nobody() -> None:
    engine = replica(model(ttft_overhead_ms=100.0))
    engine.submit(request("a", 100, 2), 0.0)
    engine.submit(request("b", 100, 2), 60.0)
    happened = {(type(h), h.id): h.at_ms for h in engine.advance(FOREVER)}
    assert happened[FirstToken, "a"] == 120.0
    assert happened[FirstToken, "b"] == 180.0
    assert engine.load(0.0).waiting == 0


# -- prefix cache --------------------------------------------------------------------------------


def test_a_repeated_prompt_computes_its_last_block_again() -> None:
    engine = replica()
    blocks = tuple(range(5))
    engine.submit(request("a", 50, 1, blocks), 0.0)
    engine.advance(FOREVER)
    engine.submit(request("b", 50, 1, blocks), 100.0)
    assert engine.advance(FOREVER)[0] == FirstToken("b", 100 + 10 + 1, 40)
    assert engine.load(200.0).cached_tokens_total == 40


def test_generated_blocks_are_hit_by_the_next_turn() -> None:
    engine = replica()
    engine.submit(request("a", 20, 21, (1, 2, 3, 4)), 0.0)
    engine.advance(FOREVER)
    engine.submit(request("b", 45, 1, (1, 2, 3, 4)), 1000.0)
    first = engine.advance(FOREVER)[0]
    assert isinstance(first, FirstToken)
    assert first.cached_tokens == 40


def test_eviction_forgets_the_oldest_prefix() -> None:
    engine = replica(kv_capacity_tokens=100)
    engine.submit(request("a", 40, 1, (1, 2, 3, 4)), 0.0)
    engine.advance(FOREVER)
    engine.submit(request("b", 80, 1, tuple(range(11, 19))), 100.0)
    engine.advance(FOREVER)
    engine.submit(request("c", 40, 1, (1, 2, 3, 4)), 200.0)
    assert engine.advance(FOREVER)[0] == FirstToken("c", pytest.approx(212.0), 20)


def test_prefix_caching_can_be_off() -> None:
    engine = replica(prefix_caching=False)
    for at_ms in (0.0, 100.0):
        engine.submit(request(f"r{at_ms}", 50, 1, tuple(range(5))), at_ms)
        first = engine.advance(FOREVER)[0]
        assert isinstance(first, FirstToken)
        assert first.cached_tokens == 0


def test_events_name_the_request() -> None:
    engine = replica(record_events=True)
    engine.submit(request("a", 25, 1, (1, 2)), 0.0)
    engine.advance(FOREVER)
    assert engine.cache.take_events() == [BlocksStored("a", 0, (1, 2), None)]


# -- memory --------------------------------------------------------------------------------------


def test_the_last_admitted_is_preempted_and_recomputed() -> None:
    engine = replica(kv_capacity_tokens=50)
    engine.submit(request("a", 20, 20), 0.0)
    engine.submit(request("b", 20, 20), 0.0)
    happened = engine.advance(FOREVER)
    # Both hold two full blocks. The one left goes to `a`, whose tenth step after that finds none.
    start = 10 + 4.0
    assert happened[2] == Preempted("b", start, 1)
    kinds = [(type(h), h.id) for h in happened]
    assert kinds == [
        (FirstToken, "a"),
        (FirstToken, "b"),
        (Preempted, "b"),
        (Finished, "a"),
        (Resumed, "b"),
        (Finished, "b"),
    ]
    alone = start + 19 * 5
    assert happened[3].at_ms == pytest.approx(alone)
    assert happened[4].at_ms == pytest.approx(alone + 10 + 2.1)
    assert happened[5].at_ms == pytest.approx(alone + 12.1 + 18 * 5)
    assert engine.load(FOREVER).preemptions_total == 1
    assert engine.cache.held == 0


def test_a_prompt_waits_until_memory_is_free() -> None:
    engine = replica(kv_capacity_tokens=100)
    engine.submit(request("a", 60, 5), 0.0)
    engine.submit(request("b", 60, 5), 0.0)
    happened = engine.advance(FOREVER)
    assert [(type(h), h.id) for h in happened[:2]] == [(FirstToken, "a"), (Finished, "a")]
    assert happened[2].at_ms == pytest.approx(happened[1].at_ms + 16)


def test_usage_follows_the_tokens() -> None:
    engine = replica(kv_capacity_tokens=100)
    engine.submit(request("a", 20, 30), 0.0)
    engine.advance(12.0)
    assert engine.load(12.0).kv_usage == pytest.approx(0.2)
    assert engine.load(12 + 5 * 10).kv_usage == pytest.approx(0.3)
    assert engine.load(12 + 5 * 11).kv_usage == pytest.approx(0.4)


# -- asking in between, aborting, refusing -------------------------------------------------------


def test_tokens_and_totals_in_the_middle_of_a_stretch() -> None:
    engine = replica()
    engine.submit(request("a", 100, 100), 0.0)
    engine.advance(61.0)
    offset = engine.offset("a")
    assert offset is not None
    assert engine.tokens_done("a", 61.0) == 9 == engine.steps_done(61.0) + offset
    assert engine.next_step_ms(61.0) == 65.0
    assert engine.load(61.0).generation_tokens_total == 9
    assert engine.offset("nobody") is None
    assert engine.tokens_done("nobody", 61.0) == 0


def test_idle_engines_have_no_next_step() -> None:
    assert replica().next_step_ms(0.0) is None
    assert replica().steps_done(5.0) == 0


def test_abort_frees_a_running_request_at_the_step_boundary() -> None:
    engine = replica()
    engine.submit(request("a", 100, 100), 0.0)
    engine.submit(request("b", 100, 100), 0.0)
    engine.advance(50.0)  # first tokens at 30, steps of 6 ms
    assert engine.abort("a", 50.0)
    assert engine.advance(54.0) == []
    assert engine.load(54.0).running == 1
    assert engine.advance(FOREVER) == [Finished("b", pytest.approx(54 + 95 * 5), 100)]
    assert engine.cache.held == 0
    assert not engine.abort("a", 60.0)


def test_abort_of_those_who_wait() -> None:
    engine = replica(model(ttft_overhead_ms=10.0), max_num_seqs=1)
    for name in "abc":
        engine.submit(request(name, 100, 10), 0.0)
    engine.advance(12.0)
    engine.submit(request("d", 100, 10), 12.0)
    for name in "bd":
        assert engine.abort(name, 12.0)
    finished = [h.id for h in engine.advance(FOREVER) if isinstance(h, Finished)]
    assert finished == ["a", "c"]


def test_abort_in_the_middle_of_a_prefill_keeps_what_is_computed() -> None:
    engine = replica(max_num_batched_tokens=256)
    engine.submit(request("a", 600, 5, tuple(range(60))), 0.0)
    engine.advance(36.0)  # one chunk of 256 is computed
    engine.abort("a", 36.0)
    engine.advance(FOREVER)
    assert (engine.cache.held, engine.cache.reusable) == (0, 51)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("a", 10, 1), "here already"),
        (request("b", 0, 1), "at least one token"),
        (request("b", 1, 0), "at least one token"),
        (request("b", 99_999, 2), "never fit"),
    ],
)
def test_requests_that_cannot_be(bad: ReplicaRequest, message: str) -> None:
    engine = replica()
    engine.submit(request("a", 10, 1), 0.0)
    with pytest.raises(ValueError, match=message):
        engine.submit(bad, 0.0)


@pytest.mark.parametrize(
    ("options", "timing"),
    [
        (ReplicaOptions(block_size=0), model()),
        (ReplicaOptions(max_num_seqs=0), model()),
        (ReplicaOptions(max_num_seqs=100, max_num_batched_tokens=99), model()),
        (ReplicaOptions(), model(decode=Decode(0.0, 0.0, 0.0, 0.0))),
    ],
)
def test_engines_that_cannot_be(options: ReplicaOptions, timing: TimingModel) -> None:
    with pytest.raises(ValueError, match="must"):
        Replica(timing, options)
