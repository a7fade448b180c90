"""A router that takes another's place, and engines that restart: no request is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .processes import Load, Router, engines


@pytest.mark.process
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (2, 1)])
async def test_a_rolling_restart_of_the_router_loses_nothing(
    tmp_path: Path, before: int, after: int
) -> None:
    with engines(2) as running:
        routers = [await started(Router(tmp_path, running, "--workers", str(before)))]
        port = routers[0].port
        load = Load(port)
        clients = asyncio.create_task(load.run(40, 10))
        try:
            for count in (after, before):
                await asyncio.sleep(1.0)
                words = ("--take-over", "--workers", str(count))
                routers.append(await started(Router(tmp_path, running, *words, port=port)))
                assert await asyncio.to_thread(routers[-2].process.wait, 30) == 0
                status, fleet = await asyncio.to_thread(routers[-1].ask, "GET", "/v1/fleet")
                assert (status, len(fleet["endpoints"])) == (200, 2)
            await asyncio.sleep(0.5)
        finally:
            load.stopping = True
            await clients
            codes = [await asyncio.to_thread(router.stop) for router in routers]
    assert load.lost == []
    assert load.closed == 0
    assert load.answered > 300
    assert codes == [0, 0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["router.log"]


async def started(router: Router) -> Router:
    return await asyncio.to_thread(router.wait_ready)
