"""Several workers as processes: killed, stopped, drained, orphaned."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infctl.cli.admin import UnixConnection
from infctl.profile.model import Profile
from infctl.router.reload import Loaded
from infctl.router.workers import sharing

from .processes import Engine, Load, Router, engines, exchange, metric


@contextmanager
def fleet(folder: Path, workers: int) -> Iterator[tuple[Router, list[Engine]]]:
    with engines(2) as running:
        router = Router(folder, running, "--workers", str(workers))
        try:
            yield router.wait_ready(), running
        finally:
            router.stop()


async def within(seconds: float, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def progress(load: Load, by: int) -> None:
    """Clients get answers."""
    wanted = load.answered + by
    await within(15, lambda: load.answered >= wanted)


def inflight(router: Router) -> int:
    return int(router.ask("GET", "/v1/fleet")[1]["totals"]["inflight"])


@pytest.mark.process
async def test_a_killed_or_stopped_worker_stalls_no_other(tmp_path: Path) -> None:
    with fleet(tmp_path, 3) as (router, running):
        load = Load(router.port)
        clients = asyncio.create_task(load.run(24, 0))
        try:
            await progress(load, 100)
            pids = await asyncio.to_thread(router.children)
            assert len(pids) == 3

            name = running[0].url.removeprefix("http://")
            target = f"/v1/endpoints/{name}"
            assert (await asyncio.to_thread(router.ask, "POST", f"{target}/drain"))[0] == 200

            os.kill(pids[1], signal.SIGKILL)
            await progress(load, 100)
            broken = len(load.lost) + load.closed
            assert broken <= 24  # what it had accepted; nothing else
            await within(20, lambda: len(router.children()) == 3)
            await within(20, lambda: router.log.read_text().count("worker_ended") == 1)

            stopped = (await asyncio.to_thread(router.children))[0]
            os.kill(stopped, signal.SIGSTOP)
            try:
                await asyncio.sleep(0.5)
                fresh = Load(router.port)
                await asyncio.wait_for(fresh.run(8, 0, seconds=1.0), 10)
                assert (fresh.lost, fresh.answered > 20) == ([], True)
                began = time.monotonic()
                status, row = await asyncio.to_thread(router.ask, "GET", target)
                assert (status, row["state"]) == (200, "draining")
                assert time.monotonic() - began < 3.0
            finally:
                os.kill(stopped, signal.SIGCONT)
            await progress(load, 200)
            assert len(load.lost) + load.closed == broken
        finally:
            load.stopping = True
            await clients
        # The one that was started anew knows what an operator drained, and dead rows are gone.
        assert await asyncio.to_thread(drained_everywhere, router, name, 3)
        await within(5, lambda: inflight(router) == 0)
        assert router.stop() == 0
    assert [p.name for p in tmp_path.iterdir()] == ["router.log"]


def drained_everywhere(router: Router, name: str, workers: int) -> bool:
    """Each worker is asked for its own view."""
    paths = sorted(router.admin.parent.glob(f"{router.admin.name}.*.[0-9]"))
    assert len(paths) == workers
    found = [exchange(UnixConnection(str(p)), "GET", f"/v1/endpoints/{name}")[1] for p in paths]
    return [row["state"] for row in found] == ["draining"] * workers


@pytest.mark.process
async def test_whoever_is_asked_answers_for_all(tmp_path: Path) -> None:
    with fleet(tmp_path, 2) as (router, _):
        load = Load(router.port)
        await load.run(16, 0, seconds=1.5)
        assert load.lost == []
        asked = load.answered
        for _ in range(4):
            found = (await asyncio.to_thread(router.ask, "GET", "/v1/fleet"))[1]
            assert found["totals"]["requests"] == asked
        await within(5, lambda: metric(router.port, "infctl_requests_total") == asked)
        listed = (await asyncio.to_thread(router.ask, "GET", "/v1/decisions"))[1]["decisions"]
        ages = [decision["age_s"] for decision in listed]
        assert len(ages) == 100
        assert ages == sorted(ages)
        first = listed[0]["request"]
        for _ in range(4):
            about = (await asyncio.to_thread(router.ask, "GET", f"/v1/decisions/{first}"))[1]
            assert len(about["decisions"]) == 1
        assert (await asyncio.to_thread(router.ask, "POST", "/v1/profile"))[0] == 200
        await within(5, lambda: router.log.read_text().count("profile_reloaded") == 2)
        router.process.send_signal(signal.SIGHUP)
        await within(5, lambda: router.log.read_text().count("profile_reloaded") == 4)


@pytest.mark.process
async def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with fleet(tmp_path, 2) as (router, _):
        pids = router.children()
        router.process.kill()
        await within(15, lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert not list(tmp_path.glob(f"a.sock.{router.process.pid}.*"))


def test_bounds_are_shared_among_workers() -> None:
    profile = Profile.model_validate(
        {
            "metadata": {"name": "t"},
            "models": [{"name": "m"}],
            "pools": [{"name": "p"}],
            "routing": {
                "limits": {"connections_max": 10, "continuation_mib_max": 9},
                "flow": {"queue_max": 5},
            },
        }
    )
    loaded = Loaded(profile, None, {})  # type: ignore[arg-type]
    routing = sharing(lambda: loaded, 4)().profile.routing
    assert routing.limits.connections_max == 3
    assert routing.limits.continuation_mib_max == 2
    assert routing.flow.queue_max == 2
