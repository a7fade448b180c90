"""Engines that misbehave under traffic: who is taken out, who must not be."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from infctl.core.breaker import STREAK_MAX
from infctl.core.fleet import Endpoint, State
from infctl.router.pages import own_page
from infctl.router.upstream import Pool

from .conftest import SSE_HEAD, Engine, Running, Seen, chunk, event, whole

COMPLETION = {"model": "m", "prompt": "hello"}
ROUND_ROBIN = {"picker": "round-robin", "health": {"slow_start_s": 0}}

Answer = Callable[[Seen, asyncio.StreamWriter], Any]


async def good(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b"{}"))


def answering(status: str, share: float = 1.0) -> Answer:
    count = 0

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        bad = int(count * share) > int((count - 1) * share)
        writer.write(whole(b"{}", status if bad else "200 OK"))

    return script


async def resetting(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def garbage(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\x00 no HTTP at all \r\n\r\n")


def state(running: Running, slot: int = 0) -> str:
    return running.router.director.fleet.states[slot].value


async def posts(running: Running, count: int, body: Any = COMPLETION) -> Counter[int]:
    answers = [await running.post("/v1/completions", body) for _ in range(count)]
    return Counter(status for status, _, _ in answers)


def ejections(running: Running, name: str = "u0") -> dict[str, int]:
    return dict(running.router.telemetry.stats(name).ejections)


@pytest.mark.parametrize("script", [answering("500 Oops"), answering("503 No"), resetting, garbage])
async def test_failures_in_a_row_trip_the_breaker_and_no_client_notices(
    script: Answer, start_engine: Any, start_router: Any
) -> None:
    engines = [await start_engine(script), await start_engine(good)]
    async with start_router(engines, ROUND_ROBIN) as running:
        assert await posts(running, 2 * STREAK_MAX + 6) == {200: 2 * STREAK_MAX + 6}
        assert (state(running), ejections(running)) == ("ejected", {"errors": 1})
        page = own_page(running.router, b"/metrics")[1].decode()
    assert len(engines[0].seen) == STREAK_MAX
    assert 'infctl_endpoint_state{endpoint="u0",pool="",state="ejected"} 1.0' in page
    assert 'infctl_endpoint_breaker_open{endpoint="u0",pool=""} 1.0' in page
    assert 'infctl_ejections_total{endpoint="u0",pool="",reason="errors"} 1.0' in page


async def test_a_share_of_failures_far_above_the_peers_is_an_outlier(
    start_engine: Any, start_router: Any
) -> None:
    engines = [await start_engine(answering("500 Oops", 0.3))]
    engines += [await start_engine(good) for _ in range(2)]
    async with start_router(engines, ROUND_ROBIN) as running:
        for _ in range(3):  # what was counted may have been forgotten in between
            assert await posts(running, 90) == {200: 90}
            running.router.sweep()
            if ejections(running):
                break
        assert (state(running), ejections(running)) == ("ejected", {"outlier": 1})


@pytest.mark.parametrize(
    "status", ["400 Bad", "401 Who", "404 No", "413 Big", "422 Odd", "429 Busy"]
)
async def test_what_clients_do_wrong_trips_nothing(
    status: str, start_engine: Any, start_router: Any
) -> None:
    engines = [await start_engine(answering(status)), await start_engine(good)]
    async with start_router(engines, ROUND_ROBIN) as running:
        found = await posts(running, 60)
        running.router.sweep()
        assert found == {200: 30, int(status[:3]): 30}
        assert (state(running), ejections(running)) == ("ready", {})
        assert running.router.lives.machine.lives[0].breaker.requests == 0


async def test_clients_that_leave_trip_nothing(start_engine: Any, start_router: Any) -> None:
    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event(text="a")))
        await writer.drain()
        await asyncio.sleep(30)

    engine = await start_engine(endless)
    async with start_router([engine]) as running:
        body = json.dumps(COMPLETION | {"stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(3 * STREAK_MAX):
            await running.raw(head + body, wait_s=0.03)
        await asyncio.sleep(0.05)
        assert not running.router.exchanges
        assert (state(running), ejections(running)) == ("ready", {})


async def test_if_all_fail_routing_goes_on(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(answering("500 Oops")) for _ in range(3)]
    async with start_router(engines, ROUND_ROBIN) as running:
        found = await posts(running, 20)
        states = Counter(s.value for s in running.router.director.fleet.states)
        running.router.telemetry.flush()
        log = running.log.getvalue()
    assert set(found) == {502}
    assert states == {"ready": 2, "ejected": 1}
    assert 1 <= log.count('"spared"') <= 2


async def test_a_tripped_breaker_lets_running_streams_finish(
    start_engine: Any, start_router: Any
) -> None:
    finish = asyncio.Event()

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b'"stream": true' not in seen.body:
            writer.write(whole(b"{}", "500 Oops"))
            return
        writer.write(SSE_HEAD + chunk(event(text="a")))
        await finish.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    engines = [await start_engine(script), await start_engine(good)]
    async with start_router(engines, ROUND_ROBIN) as running:
        stream = asyncio.ensure_future(
            running.post("/v1/completions", COMPLETION | {"stream": True})
        )
        await asyncio.sleep(0.05)
        await posts(running, 2 * STREAK_MAX)
        assert state(running) == "ejected"
        finish.set()
        status, headers, body = await stream
    assert (status, headers["x-infctl-endpoint"]) == (200, "u0")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_requests_of_an_endpoint_known_dead_move_on_at_once(
    start_engine: Any, start_router: Any
) -> None:
    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    engines = [await start_engine(never), await start_engine(good)]
    async with start_router(engines, ROUND_ROBIN) as running:
        waiting = asyncio.ensure_future(running.post("/v1/completions", COMPLETION))
        await asyncio.sleep(0.05)
        running.router.lives.refused(0, "refuses connections")
        async with asyncio.timeout(1):
            status, headers, _ = await waiting
    assert (status, headers["x-infctl-endpoint"]) == (200, "u1")


async def test_a_refused_connection_is_certain_and_one_that_times_out_is_not(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(good)
    async with start_router([engine]) as running:
        running.router.connect_failed(0, TimeoutError())
        assert state(running) == "ready"
        assert running.router.lives.machine.lives[0].suspected
        running.router.connect_failed(0, OSError(24, "Too many open files"))
        assert state(running) == "ready"
        running.router.connect_failed(0, ConnectionRefusedError())
        assert state(running) == "ejected"


async def test_what_went_wrong_here_is_not_the_endpoints_failure(
    start_engine: Any, start_router: Any, monkeypatch: Any
) -> None:
    async def exhausted(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    async with start_router([await start_engine(good)]) as running:
        monkeypatch.setattr(Pool, "connect", exhausted)
        found = await posts(running, STREAK_MAX)
        assert set(found) == {502}
        assert running.router.lives.machine.lives[0].breaker.requests == 0


async def test_answers_too_large_for_an_old_client_are_not_the_endpoints_failure(
    start_engine: Any, start_router: Any
) -> None:
    async def chunked(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"x" * (1 << 20)) * 2 + b"0\r\n\r\n")

    options = ROUND_ROBIN | {"limits": {"body_mib_max": 1}}
    async with start_router([await start_engine(chunked)], options) as running:
        body = json.dumps(COMPLETION).encode()
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(STREAK_MAX):
            assert b"too large to buffer" in await running.raw(head + body)
        assert running.router.lives.machine.lives[0].breaker.failures == 0


async def test_restarts_are_asked_for_and_counted(start_engine: Any, start_router: Any) -> None:
    asked = []
    async with start_router([await start_engine(good)]) as running:
        lives = running.router.lives
        lives.restart = lambda endpoint, restart: not asked.append((endpoint.id, restart.check))
        lives.refused(0, "refuses connections")
        page = own_page(running.router, b"/metrics")[1]
    assert asked == [("u0", True)]
    assert b'infctl_restarts_asked_total{endpoint="u0",pool=""} 1.0' in page


async def test_a_newcomer_under_load_gets_its_share_gradually(
    start_engine: Any, start_router: Any
) -> None:
    async def slow(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(whole(b"{}"))

    engines: list[Engine] = [await start_engine(slow) for _ in range(4)]
    async with start_router(engines[:3], {"health": {"slow_start_s": 0.5}}) as running:
        await asyncio.sleep(0.6)
        work = [
            asyncio.ensure_future(running.post("/v1/completions", COMPLETION)) for _ in range(60)
        ]
        await asyncio.sleep(0.1)
        running.router.join(Endpoint(unit="u3", url=engines[3].url, models=("m",)), State.READY)
        more = [
            asyncio.ensure_future(running.post("/v1/completions", COMPLETION)) for _ in range(60)
        ]
        answers = await asyncio.gather(*work, *more)
    assert {status for status, _, _ in answers} == {200}
    assert 1 <= len(engines[3].seen) <= 60 / 4


async def test_an_engine_that_answers_probes_and_no_streams_has_hung(
    start_engine: Any, start_router: Any
) -> None:
    async def stuck(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.method == "GET":
            writer.write(whole(b"{}"))
            return
        writer.write(SSE_HEAD + chunk(b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'))
        await writer.drain()
        await asyncio.sleep(30)

    engine = await start_engine(stuck)
    async with start_router([engine], {"attempts_max": 1}, kind="vllm") as running:
        body = {"model": "m", "prompt": "x", "stream": True}
        asked = asyncio.ensure_future(running.post("/v1/completions", body))
        while not running.router.stalls.heard:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        now = running.router.now()
        running.router.stalls.check(now + 2)  # odd: it is asked
        assert running.router.director.fleet.states[0] is State.READY
        running.router.stalls.check(now + 20)
        assert running.router.director.fleet.states[0] is State.EJECTED
        assert b"hung" in (await asked)[2]
