"""Workers of one router, in process, over their real shared memory."""

from __future__ import annotations

import os
from statistics import mean

import pytest

from infctl.core import events as ev
from infctl.core.fleet import Endpoint, State
from infctl.core.request import Request
from infctl.profile.keyfile import Key
from infctl.router import shared
from infctl.router.keys import Account, Keyring, Refusal
from infctl.router.wire import parse_head

from ..perf import replicas

TRACE = replicas.DATA / "mooncake_conversation.jsonl"


def test_a_burst_over_four_workers_spreads() -> None:
    routers = replicas.directors(4, [])
    look = replicas.workers(routers)
    counts = [0] * replicas.ENGINES
    for number in range(200):
        router, now = routers[number % 4], 10.0 + number * 0.00025
        look(now, router, lambda event, r=router, t=now: r.handle(event, t))  # type: ignore[misc]
        request = Request(id=f"{number}", model="m", prompt_bytes=2000, stream=True)
        (command,) = router.handle(ev.RequestArrived(request), now)
        counts[command.slot] += 1  # type: ignore[union-attr]
    assert max(counts) / mean(counts) <= 1.3


def test_a_burst_on_one_worker_is_seen_by_another() -> None:
    routers = replicas.directors(2, [])
    look = replicas.workers(routers)
    for router in routers:
        look(1.0, router, lambda event, r=router: r.handle(event, 1.0))  # type: ignore[misc]
    for number in range(replicas.ENGINES - 1):
        request = Request(id=f"{number}", model="m", prompt_bytes=40_000, stream=True)
        routers[0].handle(ev.RequestArrived(request), 2.0)
    idle = int(routers[0].fleet.inflight.argmin())
    look(2.01, routers[1], lambda event: routers[1].handle(event, 2.01))
    request = Request(id="x", model="m", prompt_bytes=40_000, stream=True)
    (command,) = routers[1].handle(ev.RequestArrived(request), 2.01)
    assert command.slot == idle  # type: ignore[union-attr]


def test_a_new_endpoint_is_known_before_anything_is_sent_there() -> None:
    routers = replicas.directors(2, [])
    look = replicas.workers(routers)

    def see(now: float) -> None:
        for router in routers:
            look(now, router, lambda event, r=router: r.handle(event, now))  # type: ignore[misc]

    see(1.0)
    for number, router in enumerate(routers):
        for name in ("x", "y")[:: 1 if number else -1]:  # found in another order
            endpoint = Endpoint(unit=name, url="", models=("n",), pool="p")
            router.handle(ev.EndpointJoined(endpoint, State.READY), 1.0)
    see(1.0)
    (command,) = routers[0].handle(ev.RequestArrived(Request(id="r", model="n")), 1.0)
    name = routers[0].fleet.slots[command.slot].id  # type: ignore[union-attr]
    see(1.1)
    slot = routers[1].fleet.slot_of(name)
    assert slot is not None
    assert slot != command.slot  # type: ignore[union-attr]
    assert routers[1].fleet.inflight[slot] == 1.0
    assert routers[1].fleet.inflight.sum() == 1.0


def test_a_dead_workers_requests_are_forgotten() -> None:
    routers = replicas.directors(2, [])
    memory = shared.create(2)
    peers = [shared.Peers(r, memory, n, 2) for n, r in enumerate(routers)]
    for router, peer in zip(routers, peers, strict=True):
        peer.look(1.0, lambda event, r=router: r.handle(event, 1.0))  # type: ignore[misc]
    routers[0].handle(ev.RequestArrived(Request(id="r", model="m")), 1.0)
    peers[1].look(2.0, lambda event: routers[1].handle(event, 2.0))
    assert routers[1].fleet.inflight.sum() == 1.0
    shared.clear(memory, 0, 2)
    peers[1].look(3.0, lambda event: routers[1].handle(event, 3.0))
    assert routers[1].fleet.inflight.sum() == 0.0
    os.close(memory)


def test_limits_of_keys_hold_for_all_workers() -> None:
    routers = replicas.directors(2, [])
    memory = shared.create(2)
    boards = [shared.Peers(r, memory, n, 2).keys for n, r in enumerate(routers)]
    os.close(memory)
    rings = [Keyring(lambda: 0.0, board) for board in boards]
    key = Key(
        name="a", sha256="ab" * 32, requests_per_minute=60, tokens_per_minute=1000,
        concurrent_requests=3,
    )  # fmt: skip
    for ring in rings:
        ring.replace([(key, 0)], 0.0)
    head = parse_head(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\n\r\n")

    def admit(ring: Keyring, name: str) -> Refusal | None:
        (account,) = ring._accounts.values()
        request = Request(id=name, model="m", prompt_tokens=300.0)
        return account.busy(1.0) or ring.admit(account, head, request, 1.0)

    def look() -> Account:
        for ring in rings:
            ring.look(1.0)
        (account,) = rings[1]._accounts.values()
        return account

    assert [admit(rings[0], name) for name in "ab"] == [None, None]
    account = look()
    assert account.requests is not None
    assert account.tokens is not None
    assert account.requests.used(1.0) == pytest.approx(2.0)
    assert account.tokens.used(1.0) == pytest.approx(600.0)
    assert admit(rings[1], "c") is None
    look()
    for ring in rings:
        refused = admit(ring, "d")
        assert refused is not None
        assert "3 requests running" in refused.message
    # A worker that ended has nothing running, and what was used stays used.
    boards[0].own[:] = 0.0
    account = look()
    assert account.busy(1.0) is None
    assert account.tokens.used(1.0) == pytest.approx(900.0)


@pytest.mark.process  # takes as long as one that starts processes
@pytest.mark.skipif(not TRACE.exists(), reason="the Mooncake trace is not here (INFCTL_DATA)")
def test_hit_rates_on_the_conversation_trace() -> None:
    trace = replicas.arrivals(TRACE, 3000)
    one = replicas.Run(replicas.directors(1, [])).replay(iter(trace))
    workers = replicas.directors(4, [])
    four = replicas.Run(workers, replicas.workers(workers)).replay(iter(trace))
    assert four.hit_rate >= one.hit_rate - 0.03
    three = replicas.Run(replicas.directors(3, [])).replay(iter(trace))
    assert three.hit_rate >= one.hit_rate - 0.05
    assert three.spread <= 1.5
    assert three.work_spread <= 1.5
