"""A router that takes another's place, and engines that restart: no request is lost."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infctl.errors import MachineError, TargetError, UsageError
from infctl.router import handover
from infctl.router.listening import Sockets

from .processes import Engine, Load, Router, engines


@pytest.mark.process
async def test_a_rolling_restart_of_the_router_loses_nothing(tmp_path: Path) -> None:
    with engines(2) as running:
        routers = [await started(Router(tmp_path, running))]
        port = routers[0].port
        load = Load(port)
        clients = asyncio.create_task(load.run(40, 10))
        try:
            for count in (2, 2, 1):
                await asyncio.sleep(0.5)
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
    assert codes == [0, 0, 0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["router.log"]


@pytest.mark.process
async def test_a_rolling_restart_of_the_engines_loses_nothing(tmp_path: Path) -> None:
    with engines(3) as running:
        router = await started(Router(tmp_path, running))
        load = Load(router.port)
        clients = asyncio.create_task(load.run(20, 6))
        try:
            for engine in running:
                await asyncio.sleep(0.3)
                await asyncio.to_thread(restart, router, engine)
            await asyncio.sleep(0.3)
        finally:
            load.stopping = True
            await clients
            router.stop()
    assert (load.lost, load.closed) == ([], 0)
    assert "leg_failed" not in router.log.read_text()


def restart(router: Router, engine: Engine) -> None:
    """Drain, restart, and back to work."""
    target = f"/v1/endpoints/{engine.url.removeprefix('http://')}"
    assert router.ask("POST", f"{target}/drain")[0] == 200
    until(lambda: router.ask("GET", target)[1]["inflight"] == 0)
    engine.stop()
    engine.start()
    assert router.ask("POST", f"{target}/resume")[0] == 200
    until(lambda: router.ask("GET", target)[1]["state"] == "ready")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.process
def test_a_successor_without_endpoints_changes_nothing(tmp_path: Path) -> None:
    """It is asked to end before it is ready: then the running one goes on, sockets and all."""
    with engines(1) as running:
        router = Router(tmp_path, running).wait_ready()
        try:
            dead = running[0]
            dead.stop()
            other = Router(tmp_path, [dead], "--take-over", port=router.port)
            time.sleep(2.5)
            assert other.process.poll() is None
            assert other.stop() == 0
            dead.start()
            until(lambda: router.ask("GET", "/v1/fleet")[1]["endpoints"][0]["state"] == "ready")
            wrong = Router(tmp_path, running, "--take-over", port=router.port + 1)
            assert wrong.process.wait(20) == 2
            wrong.stop()
            load = Load(router.port)
            asyncio.run(load.run(2, 0, seconds=0.3))
            assert load.lost == []
            assert load.answered > 0
        finally:
            assert router.stop() == 0
    log = router.log.read_text()
    assert f"listens on 127.0.0.1:{router.port}" in log


def offering(folder: Path, taken: list[str]) -> tuple[Sockets, handover.Offer]:
    sockets = Sockets()
    sockets.tcp("http", "127.0.0.1", 0).listen()
    sockets.unix("admin", folder / "a")
    sockets.unix("worker-0", folder / "a.1.0")
    return sockets, handover.Offer(sockets, str(folder / "a"), lambda: taken.append("taken"))


async def test_sockets_pass_and_stay_open(tmp_path: Path) -> None:
    taken: list[str] = []
    sockets, offer = offering(tmp_path, taken)
    found = await asyncio.to_thread(handover.take, str(tmp_path / "a"))
    assert found is not None
    assert set(found.sockets) == {"http", "admin", "offer"}
    assert taken == []
    received = Sockets(found.sockets)
    spare = socket.create_server(("127.0.0.1", 0))
    port = spare.getsockname()[1]
    with pytest.raises(UsageError, match="listens on"):
        Sockets({"http": spare.detach()}).tcp("http", "127.0.0.1", port + 1)
    http = received.tcp("http", "127.0.0.1", 0)
    received.unix("admin", tmp_path / "a")
    received.close_unused()
    await asyncio.to_thread(found.confirm)
    assert (taken, found.confirmed) == (["taken"], True)
    offer.close()
    sockets.close(keep=handover.KEPT)
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "a.1.0").exists()
    with socket.create_connection(http.getsockname()):
        http.accept()[0].close()
    received.close()
    assert not (tmp_path / "a").exists()


async def test_one_that_goes_away_before_it_serves_has_taken_nothing(tmp_path: Path) -> None:
    taken: list[str] = []
    sockets, offer = offering(tmp_path, taken)
    found = await asyncio.to_thread(handover.take, str(tmp_path / "a"))
    assert found is not None
    Sockets(found.sockets).leave()
    found._line.close()
    await asyncio.sleep(0.05)
    assert taken == []
    again = await asyncio.to_thread(handover.take, str(tmp_path / "a"))
    assert again is not None
    Sockets(again.sockets).leave()
    again._line.close()
    offer.close()
    sockets.close()


async def test_one_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert handover.take(str(tmp_path / "nobody")) is None
    monkeypatch.setattr(handover, "_SAY_S", 0.1)
    mute = Sockets()
    mute.unix("offer", handover.offer_path(str(tmp_path / "a"))).listen()
    with pytest.raises(MachineError, match="does not hand over"):
        handover.take(str(tmp_path / "a"))
    mute.close()


@pytest.mark.parametrize("gone", [True, False])
async def test_one_that_is_gone_or_hangs_at_the_last_moment(tmp_path: Path, gone: bool) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.2)
    found = handover.Taken(ours, {})
    if gone:
        theirs.close()
        found.confirm()
    else:
        with pytest.raises(TargetError, match="does not say"):
            found.confirm()
        theirs.close()
    assert found.confirmed == gone


async def test_too_many_at_once_are_turned_away(tmp_path: Path) -> None:
    sockets, offer = offering(tmp_path, [])
    path = str(handover.offer_path(str(tmp_path / "a")))
    lines = []
    for _ in range(12):
        reader, writer = await asyncio.open_unix_connection(path)
        lines.append((reader, writer))
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert len(offer._talks) <= 8
    for _, writer in lines:
        writer.close()
    await asyncio.sleep(0.05)
    assert not offer._talks
    offer.close()
    sockets.close()


async def started(router: Router) -> Router:
    return await asyncio.to_thread(router.wait_ready)
