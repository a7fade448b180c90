"""A request whose first byte is long overdue goes to a second endpoint too."""

from __future__ import annotations

import asyncio
from typing import Any

from infctl.core import events as ev

from .conftest import Running, Seen, whole
from .test_continuation import COMPLETION, DONE, SSE_HEAD, chunk, event, said

ROUTING = {"picker": "round-robin", "hedge_share": 0.5}


def saying(text: str, after_s: float = 0.0) -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after_s)
        writer.write(SSE_HEAD + chunk(event({"text": text, "finish_reason": "stop"})) + DONE)

    return script


def failing(after_s: float) -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after_s)
        writer.write(whole(b"{}", "500 Internal Server Error"))

    return script


def connections(running: Running, slot: int) -> set[Any]:
    """Those an endpoint has with the router: none is left of a request that was let go."""
    return running.router.pools[slot]._links


async def hurried(running: Running, body: dict[str, Any]) -> bytes:
    """An answer to a request that is said to be overdue as soon as it is sent."""
    asked = asyncio.ensure_future(running.post("/v1/completions", body))
    while not running.router.exchanges:
        await asyncio.sleep(0.005)
    (request_id,) = running.router.exchanges
    running.router.handle(ev.FirstByteOverdue(request_id))
    status, _, answer = await asked
    assert status == 200
    assert not running.router.exchanges
    assert len(running.router.director.flights) == 0
    assert float(running.router.director.fleet.inflight.sum()) == 0.0
    assert float(running.router.director.fleet.pending.sum()) == 0.0
    return answer


async def test_the_faster_endpoint_answers(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(saying("slow", 5)), await start_engine(saying("fast", 0.05))]
    async with start_router(engines, ROUTING, kind="vllm") as running:
        assert said(await hurried(running, COMPLETION))[0] == "fast"
        telemetry = running.router.telemetry
        assert (telemetry.hedges, telemetry.hedges_won) == (1, 1)
        await asyncio.sleep(0.02)
        assert not connections(running, 0)


async def test_the_first_endpoint_may_answer_all_the_same(
    start_engine: Any, start_router: Any
) -> None:
    engines = [await start_engine(saying("first", 0.1)), await start_engine(saying("late", 5))]
    async with start_router(engines, ROUTING, kind="vllm") as running:
        assert said(await hurried(running, COMPLETION))[0] == "first"
        assert running.router.telemetry.hedges_won == 0


async def test_when_one_of_them_fails_the_other_goes_on(
    start_engine: Any, start_router: Any
) -> None:
    for first, second in (
        (failing(0.05), saying("alive", 0.2)),
        (saying("alive", 0.2), failing(0.05)),
    ):
        engines = [await start_engine(first), await start_engine(second)]
        async with start_router(engines, ROUTING, kind="vllm") as running:
            assert said(await hurried(running, COMPLETION))[0] == "alive"


async def test_when_both_fail_it_is_tried_again(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(failing(0.05)) for _ in range(2)]
    engines.append(await start_engine(saying("third")))
    async with start_router(engines, ROUTING, kind="vllm") as running:
        assert said(await hurried(running, COMPLETION))[0] == "third"


async def test_a_client_that_leaves_frees_both(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(saying("x", 5)) for _ in range(2)]
    async with start_router(engines, ROUTING, kind="vllm") as running:
        body = b'{"model":"m","prompt":"x","stream":true}'
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        while not running.router.exchanges:
            await asyncio.sleep(0.005)
        (request_id,) = running.router.exchanges
        running.router.handle(ev.FirstByteOverdue(request_id))
        await asyncio.sleep(0.05)
        assert float(running.router.director.fleet.inflight.sum()) == 2.0
        writer.close()
        await asyncio.sleep(0.15)
        assert float(running.router.director.fleet.inflight.sum()) == 0.0
        assert not connections(running, 0) | connections(running, 1)


async def test_the_timer_runs_by_itself(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(saying("slow", 5)), await start_engine(saying("fast"))]
    async with start_router(engines, ROUTING, kind="vllm") as running:
        _, _, answer = await running.post("/v1/completions", COMPLETION)
    assert said(answer)[0] == "fast"


async def test_without_a_share_nothing_is_hedged(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(saying("slow", 0.8)), await start_engine(saying("fast"))]
    async with start_router(engines, {"picker": "round-robin"}, kind="vllm") as running:
        _, _, answer = await running.post("/v1/completions", COMPLETION)
        assert running.router.telemetry.hedges == 0
    assert said(answer)[0] == "slow"
