"""The engine in time: what must hold for any load."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.replica import (
    Finished,
    Happening,
    Preempted,
    Replica,
    ReplicaOptions,
)
from infctl.timing import Decode

from .test_machine import FOREVER, model, request

LOADS = st.lists(
    st.tuples(
        st.floats(0, 400, width=32),
        st.integers(1, 90),
        st.integers(1, 60),
        st.integers(0, 3),
        st.none() | st.floats(0, 300, width=32),
    ),
    min_size=1,
    max_size=14,
)
Load = list[tuple[float, int, int, int, float | None]]


def play(engine: Replica, load: Load, ticks_ms: list[float]) -> list[Happening]:
    """Submit and abort at their times, and advance at `ticks_ms` besides."""
    moments: list[tuple[float, int, str, int]] = [(t, 2, "", 0) for t in ticks_ms]
    for index, (at_ms, _, _, _, abort_after) in enumerate(load):
        moments.append((at_ms, 0, "submit", index))
        if abort_after is not None:
            moments.append((at_ms + abort_after, 1, "abort", index))
    happened = []
    for at_ms, _, what, index in sorted(moments):
        happened += engine.advance(at_ms)
        if what == "submit":
            _, prompt, output, family, _ = load[index]
            blocks = tuple(family * 1000 + i for i in range((prompt + output) // 10))
            engine.submit(request(str(index), prompt, output, blocks), at_ms)
        elif what == "abort":
            engine.abort(str(index), at_ms)
        assert engine.cache.held <= engine.cache.capacity
        assert engine.load(at_ms).running <= engine.options.max_num_seqs
    return happened + engine.advance(FOREVER)


def small(capacity: int, seqs: int) -> Replica:
    """An engine that runs out of everything."""
    timing = model(decode=Decode(4.0, 1.0, 0.5, 0.003), ttft_overhead_ms=7.0, interference=0.8)
    return Replica(
        timing,
        ReplicaOptions(
            block_size=10,
            kv_capacity_tokens=capacity,
            max_num_seqs=seqs,
            max_num_batched_tokens=64,
        ),
    )


@settings(max_examples=120, deadline=None)
@given(load=LOADS, capacity=st.integers(15, 40), seqs=st.integers(1, 6))
def test_every_request_ends_with_its_tokens(load: Load, capacity: int, seqs: int) -> None:
    engine = small(capacity * 10, seqs)
    happened = play(engine, load, [])
    finished = {h.id: h.tokens for h in happened if isinstance(h, Finished)}
    for index, (_, _, output, _, abort_after) in enumerate(load):
        if abort_after is None or str(index) in finished:
            assert finished[str(index)] == output
    assert (engine.cache.held, engine.next_change_ms()) == (0, None)
    state = engine.load(FOREVER)
    assert (state.running, state.waiting, state.kv_usage) == (0, 0, 0.0)
    assert state.preemptions_total == sum(isinstance(h, Preempted) for h in happened)
    assert [h.at_ms for h in happened] == sorted(h.at_ms for h in happened)


@settings(max_examples=80, deadline=None)
@given(
    load=LOADS,
    capacity=st.integers(15, 40),
    ticks_ms=st.lists(st.floats(0, 1500, width=32), max_size=60),
)
def test_how_often_it_is_advanced_changes_nothing(
    load: Load, capacity: int, ticks_ms: list[float]
) -> None:
    assert play(small(capacity * 10, 4), load, ticks_ms) == play(small(capacity * 10, 4), load, [])


@settings(max_examples=60, deadline=None)
@given(load=LOADS, ticks_ms=st.lists(st.floats(0, 1500, width=32), min_size=2, max_size=40))
def test_tokens_never_go_backwards(load: Load, ticks_ms: list[float]) -> None:
    engine, seen = small(300, 4), dict.fromkeys(map(str, range(len(load))), 0)
    pending = sorted(enumerate(load), key=lambda item: item[1][0])
    for tick_ms in sorted(ticks_ms):
        while pending and pending[0][1][0] <= tick_ms:
            index, (at_ms, prompt, output, _, _) = pending.pop(0)
            engine.advance(at_ms)
            engine.submit(request(str(index), prompt, output), at_ms)
        gone = {h.id for h in engine.advance(tick_ms) if isinstance(h, Finished)}
        for name in seen.keys() - gone:
            done = engine.tokens_done(name, tick_ms)
            assert done >= seen[name] or done == 0
            seen[name] = done
