"""Requests that wait at the router, over real sockets: overload, classes, deadlines, drain."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from infctl.cli.route import _headline
from infctl.core.fleet import Endpoint, Load, State
from infctl.router.admin import Admin

from .conftest import (
    SSE_HEAD,
    Engine,
    Running,
    Seen,
    StartEngine,
    chunk,
    event,
    split,
    whole,
)

PROMPT = "x" * 120_000
"""30,000 tokens: 1.5 s of prefill at the speed of an endpoint not seen yet."""


async def no_reload() -> tuple[int, Any]:
    return 500, {}


class Gate:
    """An engine that answers each request when it is told to."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.open = asyncio.Event()
        self.let: dict[str, asyncio.Event] = {}

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        name = seen.headers["x-request-id"]
        self.order.append(name)
        own = self.let.setdefault(name, asyncio.Event())
        waits = [asyncio.ensure_future(e.wait()) for e in (self.open, own)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        writer.write(SSE_HEAD + chunk(event(id=name)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def release(self, name: str) -> None:
        self.let.setdefault(name, asyncio.Event()).set()

    async def reached(self, *names: str) -> None:
        async with asyncio.timeout(3):
            while not set(names) <= set(self.order):
                await asyncio.sleep(0.005)


def ask(running: Running, name: str, **headers: str) -> asyncio.Task[tuple[int, Any, bytes]]:
    body = {"model": "m", "prompt": PROMPT, "stream": True}
    post = running.post("/v1/completions", body, x_request_id=name, **headers)
    return asyncio.get_running_loop().create_task(post)


async def queued(running: Running, count: int) -> None:
    async with asyncio.timeout(3):
        while len(running.router.director.flow) != count:
            await asyncio.sleep(0.005)


async def test_overload_waits_at_the_router_and_everything_is_answered(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        asks = [ask(running, f"r{n}") for n in range(6)]
        await queued(running, 5)
        assert len(running.router.director.flights) == 1
        gate.open.set()
        answers = await asyncio.gather(*asks)
        running.router.telemetry.flush()
        lines = [json.loads(line) for line in running.log.getvalue().splitlines()]
        metrics = running.router.telemetry.exposition(running.router.director, {}, 1e9).decode()
    assert [status for status, _, _ in answers] == [200] * 6
    assert all(body.endswith(b"data: [DONE]\n\n") for _, _, body in answers)
    waited = [line for line in lines if line.get("queue_ms")]
    assert len(waited) == 5
    assert {line["priority"] for line in waited} == {"interactive"}
    assert 'infctl_queue_time_seconds_count{priority="interactive"} 5.0' in metrics
    assert 'infctl_queued_requests{priority="interactive"} 0.0' in metrics


async def test_the_urgent_class_goes_first(start_engine: StartEngine, start_router: Any) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        asks = [ask(running, "a")]
        await gate.reached("a")
        for n, (name, priority) in enumerate(
            (("b0", "batch"), ("b1", "batch"), ("i0", "interactive"), ("i1", "interactive"))
        ):
            asks.append(ask(running, name, x_priority=priority))
            await queued(running, n + 1)
        waiting = running.router.director.flow.waiting()
        assert [count for count, _ in waiting] == [2, 2]
        assert Admin(running.router, list, no_reload)._fleet()["totals"]["queued"] == 4
        gate.open.set()
        await asyncio.gather(*asks)
        admin = Admin(running.router, list, no_reload)
        (decision,) = admin._answer("GET", "/v1/decisions/i0")[1]["decisions"]
        assert decision["queue_ms"] > 0
        assert " s in the queue" in _headline(decision, "p")
        decision["queue_ms"] = 0.0
        assert "queue" not in _headline(decision, "p")
    assert gate.order.index("i0") < gate.order.index("i1") < gate.order.index("b0")


async def test_the_deadline_is_a_429_with_retry_after(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    routing = {"flow": {"queue_s": 0.4}}
    async with start_router([await start_engine(gate)], routing) as running:
        first = ask(running, "a")
        await gate.reached("a")
        late, hasty = ask(running, "b"), ask(running, "c", x_request_timeout_s="0.1")
        status, headers, body = await hasty
        assert not late.done()
        assert (status, headers["retry-after"].isdigit()) == (429, True)
        assert json.loads(body)["error"]["type"] == "RateLimitError"
        assert (await late)[0] == 429
        gate.open.set()
        assert (await first)[0] == 200
        metrics = running.router.telemetry.exposition(running.router.director, {}, 1e9).decode()
    assert gate.order == ["a"]
    assert 'infctl_shed_total{priority="interactive",reason="deadline"} 2.0' in metrics
    assert 'infctl_shed_total{priority="batch",reason="full"} 0.0' in metrics


async def test_a_full_queue_displaces_batch(start_engine: StartEngine, start_router: Any) -> None:
    gate = Gate()
    routing = {"flow": {"queue_max": 1}}
    async with start_router([await start_engine(gate)], routing) as running:
        first = ask(running, "a")
        await gate.reached("a")
        batch = ask(running, "b", x_priority="batch")
        await queued(running, 1)
        urgent = ask(running, "c")
        assert (await batch)[0] == 429
        assert (await ask(running, "d", x_priority="batch"))[0] == 429
        gate.open.set()
        assert [(await each)[0] for each in (first, urgent)] == [200, 200]


async def test_a_client_that_leaves_the_queue_is_never_sent(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        first = ask(running, "a")
        await gate.reached("a")
        leaving = ask(running, "b")
        await queued(running, 1)
        leaving.cancel()
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = json.dumps({"model": "m", "prompt": PROMPT}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await queued(running, 2)
        writer.close()
        await queued(running, 1)
        for connection in list(running.server.connections):
            if getattr(connection.exchange, "request_id", b"") == b"b":
                connection.transport.close()
        await queued(running, 0)
        gate.open.set()
        assert (await first)[0] == 200
        assert not running.router.exchanges
    assert gate.order == ["a"]


async def test_a_request_waits_for_a_unit_that_starts(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    gate.open.set()
    engine = await start_engine(gate)
    async with start_router([]) as running:
        router = running.router
        assert (await ask(running, "none"))[0] == 503
        router.join(Endpoint(unit="u0", url=engine.url, models=("m",)), State.STARTING)
        waiting = [ask(running, f"r{n}") for n in range(3)]
        await queued(running, 3)
        router.change("u0", State.READY, "answers")
        assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200] * 3


async def test_a_unit_that_joins_ready_takes_what_waits(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    gate.open.set()
    engine = await start_engine(gate)
    async with start_router([]) as running:
        router = running.router
        router.join(Endpoint(unit="dead", url="http://127.0.0.1:9", models=("m",)), State.EJECTED)
        waiting = ask(running, "a")
        await queued(running, 1)
        router.join(Endpoint(unit="u1", url=engine.url, models=("m",)), State.READY)
        assert (await waiting)[0] == 200
        assert router.telemetry.retries == 0


async def test_a_unit_that_never_starts_is_a_503(start_router: Any) -> None:
    async with start_router([], {"flow": {"queue_s": 0.1}}) as running:
        endpoint = Endpoint(unit="u0", url="http://127.0.0.1:9", models=("m",))
        running.router.join(endpoint, State.STARTING)
        status, headers, _ = await ask(running, "a")
    assert (status, headers["retry-after"]) == (503, "60")


async def test_the_only_engine_restarts_and_no_request_is_lost(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    gate.open.set()
    engine = await start_engine(gate)
    gone = Engine(gate, url="http://127.0.0.1:9")
    async with start_router([gone]) as running:
        router = running.router
        waiting = ask(running, "a")
        await queued(running, 1)
        assert router.director.fleet.states[0] is State.EJECTED
        router.join(Endpoint(unit="u0", url=engine.url, models=("m",)), State.READY)
        status, headers, _ = await waiting
        await asyncio.sleep(0.1)
        assert (status, headers["x-infctl-endpoint"], gate.order) == (200, "u0", ["a"])


async def test_reports_hold_back_requests_that_do_not_stream(
    start_engine: StartEngine, start_router: Any
) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(whole(b"{}"))

    async with start_router([await start_engine(answer)]) as running:
        router = running.router
        body = {"model": "m", "prompt": "x"}
        loop = asyncio.get_running_loop()
        asks = [loop.create_task(running.post("/v1/completions", body)) for _ in range(8)]
        async with asyncio.timeout(3):
            while len(router.director.flights) < 8:
                await asyncio.sleep(0.005)
        router.handle(router_report(waiting=6.0))
        asks += [loop.create_task(running.post("/v1/completions", body)) for _ in range(4)]
        await queued(running, 4)
        assert [status for status, _, _ in await asyncio.gather(*asks)] == [200] * 12


def router_report(waiting: float) -> Any:
    from infctl.core.events import LoadReported

    return LoadReported("u0", Load(waiting=waiting))


@pytest.mark.parametrize(
    "headers",
    [
        {"x_priority": "urgent"},
        {"x_priority": "Interactive"},
        {"x_priority": ""},
        {"x_request_timeout_s": "0"},
        {"x_request_timeout_s": "-1"},
        {"x_request_timeout_s": "nan"},
        {"x_request_timeout_s": "1e9"},
        {"x_request_timeout_s": "soon"},
        {"x_request_timeout_s": ""},
    ],
)
async def test_a_class_or_patience_that_is_none_is_a_400(
    start_engine: StartEngine, start_router: Any, headers: dict[str, str]
) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        assert (await ask(running, "a", **headers))[0] == 400
    assert gate.order == []


async def test_a_stopping_router_still_releases_what_waits(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        asks = [ask(running, "a")]
        await gate.reached("a")
        for n, name in enumerate(("b", "c")):
            asks.append(ask(running, name))
            await queued(running, n + 1)
        running.server.drain(0.1)
        gate.open.set()
        assert [status for status, _, _ in await asyncio.gather(*asks)] == [200] * 3


async def test_what_is_left_when_the_drain_ends_is_answered(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        asks = [ask(running, "a")]
        await gate.reached("a")
        asks += [ask(running, name) for name in ("b", "c")]
        await queued(running, 2)
        running.server.drain(0.1)
        running.router.end("the router is shutting down")
        answers = await asyncio.gather(*asks)
        director = running.router.director
        assert not running.router.exchanges
        assert (len(director.flights), len(director.flow)) == (0, 0)
    assert [status for status, _, _ in answers] == [503] * 3
    assert [headers["retry-after"] for _, headers, _ in answers] == ["1"] * 3
    assert gate.order == ["a"]


async def test_pipelined_requests_wait_one_after_the_other(
    start_engine: StartEngine, start_router: Any
) -> None:
    gate = Gate()
    async with start_router([await start_engine(gate)]) as running:
        first = ask(running, "a")
        await gate.reached("a")
        body = json.dumps({"model": "m", "prompt": "y", "stream": True}).encode()
        one = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\n%sContent-Length: %d\r\n\r\n%s"
        train = one % (b"", len(body), body)
        train += one % (b"Connection: close\r\n", len(body), body)
        raw = asyncio.get_running_loop().create_task(running.raw(train))
        await queued(running, 1)
        gate.open.set()
        answer = await raw
        assert answer.count(b"HTTP/1.1 200") == 2
        assert split(answer)[0] == 200
        await first
