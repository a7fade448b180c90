"""Silence is odd by an endpoint's own pace: after a second where a token takes 10 ms, later where
it takes 500."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from infctl.core.fleet import State

from .conftest import SSE_HEAD, Running, Seen, chunk, event

BODY = {"model": "m", "prompt": "x", "stream": True}


async def one_token(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(event(choices=[{"index": 0, "text": "a"}])))
    await writer.drain()
    await asyncio.sleep(30)


class Asked:
    """Notes what is suspected instead of asking it."""

    def __init__(self, running: Running) -> None:
        self.reasons: list[str] = []
        running.router.suspect = lambda slot, reason: self.reasons.append(reason)  # type: ignore[method-assign]


async def streaming(running: Running) -> asyncio.Future[Any]:
    """A stream whose first token is here."""
    asked = asyncio.ensure_future(running.post("/v1/completions", BODY))
    while not float(running.router.director.fleet.started.sum()):
        await asyncio.sleep(0.01)
    return asked


@pytest.mark.parametrize(("token_ms", "patience_s"), [(10.0, 1.1), (500.0, 6.0)])
async def test_patience_is_a_second_and_ten_tokens(
    start_engine: Any, start_router: Any, token_ms: float, patience_s: float
) -> None:
    engine = await start_engine(one_token)
    async with start_router([engine], kind="vllm") as running:
        asked, router = await streaming(running), running.router
        noted = Asked(running)
        cells = router.director.fleet.cells
        cells["step_ms"][0], cells["step_ms_per_request"][0] = token_ms, 0.0
        heard = router.stalls.heard[0]
        router.stalls.check(heard + patience_s * 0.95)
        assert not noted.reasons
        router.stalls.check(heard + patience_s * 1.05)
        assert len(noted.reasons) == 1
        router.stalls.check(heard + patience_s * 1.1)
        assert len(noted.reasons) == 1  # asked already
        assert router.director.fleet.states[0] is State.READY
        router.stalls.check(heard + patience_s * 4.1)
        assert router.director.fleet.states[0] is State.EJECTED
        asked.cancel()


async def test_a_long_prompt_in_the_queue_explains_silence(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(one_token)
    async with start_router([engine], kind="vllm") as running:
        asked, router = await streaming(running), running.router
        noted = Asked(running)
        cells = router.director.fleet.cells
        cells["step_ms"][0], cells["step_ms_per_request"][0] = 10.0, 0.0
        heard = router.stalls.heard[0]
        cells["free_at_ms"][0] = (heard + 8.0) * 1000.0
        router.stalls.check(heard + 9.0)
        assert not noted.reasons
        router.stalls.check(heard + 9.2)
        assert noted.reasons
        asked.cancel()


async def test_an_idle_endpoint_may_be_silent(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(one_token)
    async with start_router([engine], kind="vllm") as running:
        asked, router = await streaming(running), running.router
        noted = Asked(running)
        for connection in list(running.server.connections):
            connection.abort()
        while router.exchanges:
            await asyncio.sleep(0.01)
        router.stalls.check(router.now() + 100.0)
        assert not noted.reasons
        assert not router.stalls.heard
        await asked
