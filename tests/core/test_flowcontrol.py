"""The queues: bounded, by class, fair per tenant."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.core.flowcontrol import FlowControl, Held
from infctl.core.request import Request

LANE = {"m"}


def held(
    name: str, tenant: str = "", priority: int = 0, tokens: float = 100.0, **more: object
) -> Held:
    request = Request(
        id=name,
        model="m",
        tenant=tenant,
        priority=priority,
        body_bytes=int(more.pop("body_bytes", 0)),  # type: ignore[call-overload]
    )
    fields: dict[str, object] = {
        "lane": "m", "tokens": tokens, "since_ms": 0.0, "deadline_ms": 1e9,
    } | more  # fmt: skip
    return Held(request, **fields)  # type: ignore[arg-type]


def drain(flow: FlowControl, count: int = 10**6) -> list[str]:
    names: list[str] = []
    while len(names) < count and (item := flow.next(LANE)) is not None:
        flow.take(item, 0.0)
        names.append(item.request.id)
    return names


def filled(*items: Held, queue_max: int = 100, classes: int = 2) -> FlowControl:
    flow = FlowControl(classes, queue_max)
    for item in items:
        assert flow.offer(item) == []
    return flow


def test_one_tenant_is_first_come_first_served() -> None:
    flow = filled(*(held(f"r{n}", tokens=10.0 ** (n % 5)) for n in range(20)))
    assert drain(flow) == [f"r{n}" for n in range(20)]
    assert flow.waiting() == [(0, 0.0), (0, 0.0)]


def test_a_higher_class_goes_first() -> None:
    flow = filled(held("b0", priority=1), held("a0"), held("b1", priority=1), held("a1"))
    assert flow.waiting() == [(2, 200.0), (2, 200.0)]
    assert drain(flow) == ["a0", "a1", "b0", "b1"]


def test_a_request_that_was_dispatched_before_goes_to_the_front_of_its_class() -> None:
    flow = filled(
        held("x", priority=0),
        *(held(f"b{n}", tenant="t", priority=1) for n in range(3)),
        *(held(f"c{n}", tenant="u", priority=1) for n in range(3)),
        held("again", tenant="u", priority=1, attempt=2, tokens=1e6),
    )
    assert drain(flow)[:2] == ["x", "again"]


@pytest.mark.parametrize("sizes", [(100, 100), (50, 40_000), (400, 200_000), (3_000, 7_000)])
def test_backlogged_tenants_get_equal_shares_of_tokens(sizes: tuple[int, int]) -> None:
    small, large = sizes
    total = 40 * max(large, 50_000)
    flow = FlowControl(1, 10**7)
    left = {"small": small, "large": large}
    for tenant, size in left.items():
        for n in range(5):
            flow.offer(held(f"{tenant}{n}", tenant, tokens=float(size)))
    served: Counter[str] = Counter()
    number = 5
    while served.total() < total:
        item = flow.next(LANE)
        assert item is not None
        flow.take(item, 0.0)
        tenant = item.request.tenant
        served[tenant] += int(item.tokens)
        number += 1
        flow.offer(held(f"{tenant}{number}", tenant, tokens=item.tokens))
    assert served["small"] == pytest.approx(total / 2, rel=0.1)


def test_a_tenant_that_floods_does_not_starve_another() -> None:
    flow = filled(*(held(f"f{n}", "flood") for n in range(50)), queue_max=50)
    for n in range(10):
        (shed,) = flow.offer(held(f"q{n}", "quiet"))
        assert shed.request.id == f"f{49 - n}"
    order = drain(flow, 30)
    assert [name[0] for name in order].count("q") == 10


def test_a_full_queue_sheds_the_newest_of_the_lowest_class() -> None:
    flow = filled(
        held("b0", priority=1), held("b1", priority=1, since_ms=5.0), held("a0"), queue_max=3
    )
    assert [h.request.id for h in flow.offer(held("a1"))] == ["b1"]
    assert [h.request.id for h in flow.offer(held("b2", priority=1))] == ["b2"]
    assert [h.request.id for h in flow.offer(held("a2"))] == ["b0"]
    assert [h.request.id for h in flow.offer(held("a3"))] == ["a3"]
    assert drain(flow) == ["a0", "a1", "a2"]


def test_two_tenants_do_not_displace_each_other_for_ever() -> None:
    flow = filled(held("x0", "x"), held("y0", "y"), held("y1", "y"), queue_max=3)
    assert [h.request.id for h in flow.offer(held("x1", "x"))] == ["x1"]
    assert [h.request.id for h in flow.offer(held("y2", "y"))] == ["y2"]


def test_bodies_are_bounded_in_bytes() -> None:
    big = 400 << 20
    flow = filled(*(held(f"b{n}", priority=1, body_bytes=big) for n in range(2)))
    assert [h.request.id for h in flow.offer(held("a", body_bytes=700 << 20))] == ["b1", "b0"]
    assert drain(flow) == ["a"]
    flow = filled(held("a", body_bytes=big), held("b", priority=1, body_bytes=big))
    assert [h.request.id for h in flow.offer(held("c", body_bytes=900 << 20))] == ["c"]
    assert drain(flow) == ["a", "b"]
    assert [h.request.id for h in flow.offer(held("d", body_bytes=2 << 30))] == ["d"]


def test_no_room_at_all_turns_everything_away() -> None:
    assert len(FlowControl(1, 0).offer(held("a"))) == 1


def test_a_blocked_lane_does_not_hold_up_another() -> None:
    flow = filled(held("a0", lane="other"), held("a1"), held("b", "t", lane="other"))
    assert drain(flow) == ["a1"]
    assert flow.next({"other"}) is not None
    assert flow.precedes("other", 0)
    assert not flow.precedes("m", 1)


def test_many_lanes_are_tried_in_turn() -> None:
    flow = filled(*(held(f"r{n}", lane=n) for n in range(40)))
    seen = {lane for _ in range(3) for lane, _ in flow.lanes()}
    assert seen == set(range(40))


def test_retry_after_is_what_waits_over_the_measured_rate() -> None:
    flow = FlowControl(2, 1000)
    for n in range(200):
        flow.offer(held(f"r{n}", tokens=1000.0))
    assert flow.retry_after_s(0, 0.0) == 60
    now_ms = 0.0
    for _ in range(100):
        now_ms += 100.0
        item = flow.next(LANE)
        assert item is not None
        flow.take(item, now_ms)
    assert flow.retry_after_s(0, now_ms) in (10, 11)
    assert flow.retry_after_s(0, now_ms + 100_000.0) == 60


def test_expiry_returns_each_late_request_once() -> None:
    flow = filled(*(held(f"r{n}", deadline_ms=float(n)) for n in range(10)))
    assert [h.request.id for h in flow.expired(4.0)] == [f"r{n}" for n in range(5)]
    assert flow.expired(4.0) == []
    assert len(flow) == 5


operations = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "offer", "take", "remove", "expire"]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.floats(0.0, 1e6),
        st.sampled_from(["m", "n"]),
        st.integers(1, 2),
    ),
    max_size=80,
)


@given(operations, st.integers(0, 6))
def test_nothing_is_forgotten_or_told_twice(operations: list[tuple], queue_max: int) -> None:  # type: ignore[type-arg]
    flow = FlowControl(3, queue_max)
    inside: dict[str, Held] = {}
    for number, (what, tenant, priority, tokens, lane, attempt) in enumerate(operations):
        gone: list[Held] = []
        if what == "offer":
            item = held(
                f"r{number}", f"t{tenant}", priority, tokens, lane=lane, attempt=attempt,
                deadline_ms=float(number + tenant * 5),
            )  # fmt: skip
            inside[item.request.id] = item
            gone = flow.offer(item)
            assert all(g.request.priority >= priority for g in gone)
        elif what == "take":
            found = flow.next({lane})
            assert (found is None) == all(h.lane != lane for h in inside.values())
            if found is not None:
                best = min(h.request.priority for h in inside.values() if h.lane == lane)
                assert found.request.priority == best
                flow.take(found, float(number))
                gone = [found]
        elif what == "remove" and inside:
            removed = flow.remove(random.Random(number).choice(sorted(inside)))
            assert removed is not None
            gone = [removed]
        elif what == "expire":
            gone = flow.expired(float(number))
        for item in gone:
            assert inside.pop(item.request.id) is item
        assert len(flow) == len(inside) <= queue_max
        counts = [count for count, _ in flow.waiting()]
        assert counts == [sum(h.request.priority == p for h in inside.values()) for p in range(3)]
    assert sum(1 for _ in iter(lambda: flow_out(flow), None)) == len(inside)


def flow_out(flow: FlowControl) -> Held | None:
    found = flow.next({"m", "n"})
    if found is not None:
        flow.take(found, 1e6)
    return found
