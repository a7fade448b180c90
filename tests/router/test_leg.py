"""What an attempt leaves behind: nothing, and that at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from infctl.router.leg import Leg
from infctl.router.proxy import Exchange

from .conftest import Seen, whole
from .test_continuation import COMPLETION, engine


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles stay where they are: a request's body would stay with them, of any size."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[str]:
    """Exchanges and legs that are still in memory."""
    return [type(o).__name__ for o in gc.get_objects() if isinstance(o, Exchange | Leg)]


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b'{"choices": [], "usage": {"prompt_tokens": 3}}'))


async def failing(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b"{}", "500 Internal Server Error"))


CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "answered": ([echo], {"stream": False}),
    "retried": ([failing, echo], {"stream": False}),
    "failed": ([failing, failing, failing], {"stream": False}),
    "streamed": ([engine()], {}),
    "continued": ([engine(5), engine()], {}),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_request_is_forgotten_when_it_is_over(
    start_engine: Any, start_router: Any, no_collector: None, case: str
) -> None:
    scripts, more = CASES[case]
    engines = [await start_engine(script) for script in scripts]
    async with start_router(engines, {"picker": "round-robin"}, kind="vllm") as running:
        await running.post("/v1/completions", COMPLETION | more)
        await asyncio.sleep(0.02)
        assert left() == []
