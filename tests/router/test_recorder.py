"""The event log of a router: what is in it, and that nothing about it can hurt the router."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from infctl import compose, provenance
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.eventlog import EventLog
from infctl.core.fleet import Endpoint, State
from infctl.core.request import Request
from infctl.errors import MachineError, UsageError
from infctl.profile.model import Profile
from infctl.router import recorder as module
from infctl.router.recorder import Recorder, check, claim
from infctl.sim.replay import replay

from .conftest import SSE_HEAD, Seen, chunk, event, whole
from .processes import Load, Router, engines, metric
from .tokenizers_made import folder, gpt2

PROFILE = Profile.model_validate(
    {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
)
MIB = 1 << 20


def made(path: str, bytes_max: int = MIB) -> tuple[Recorder, list[str]]:
    header = provenance.header(PROFILE, seed=1, speed=1.0, wall_s=0.0, now=0.0)
    stopped: list[str] = []
    director = Director(compose.pipeline(PROFILE), Random(1))
    return Recorder(director, claim(path), header, bytes_max, stopped.append), stopped


def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never")


def arrivals(recorder: Recorder, count: int) -> None:
    for number in range(count):
        request = Request(id=f"r{number}", model="m", name="n" * 100)
        (command,) = recorder.handle(ev.RequestArrived(request), number / 1000)
        assert command.request_id == f"r{number}"


def test_a_log_is_its_owners_alone_and_the_last_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for count in (3, 4):
        recorder, _ = made(str(path))
        arrivals(recorder, count)
        recorder.close()
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert replay(path).requests == 4
    assert replay(tmp_path / "log.old").requests == 3
    assert sorted(f.name for f in tmp_path.iterdir()) == ["log", "log.old"]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(UsageError, match="no event log"):
        claim(str(other))
    assert other.read_text() == "mine"
    with pytest.raises(MachineError, match="not there"):
        check(str(tmp_path / "nowhere" / "log"))
    with pytest.raises(MachineError, match="cannot be"):
        claim(str(tmp_path))
    check(str(tmp_path / "log"))
    assert not (tmp_path / "log").exists()


def test_a_second_without_requests_is_in_the_file_at_once(tmp_path: Path) -> None:
    """What `kill -9` leaves: everything up to the last tick."""
    recorder, _ = made(str(tmp_path / "log"))
    arrivals(recorder, 5)
    recorder.handle(ev.Tick(), 1.0)
    arrivals(recorder, 2)
    until(lambda: recorder.written_bytes == recorder._given)
    found = replay(tmp_path / "log")
    assert (found.difference, found.ended, found.left, found.events) == (None, "", 0, 6)
    recorder.close()
    assert replay(tmp_path / "log").events == 8


def test_a_full_disk_ends_the_recording_alone() -> None:
    recorder, stopped = made("/dev/full")
    until(lambda: recorder._writer.error)
    arrivals(recorder, 3)
    assert stopped == []
    recorder.handle(ev.Tick(), 1.0)
    assert stopped == ["No space left on device"]
    assert not recorder.running
    arrivals(recorder, 3)
    recorder.close()
    assert (stopped, recorder.written_bytes) == (["No space left on device"], 0)


def test_a_reader_that_goes_away_ends_the_recording_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    recorder, stopped = made(str(tmp_path / "pipe"))
    os.close(reader)
    recorder.handle(ev.Tick(), 0.5)
    until(lambda: recorder._writer.error)
    recorder.handle(ev.Tick(), 1.0)
    assert stopped == ["Broken pipe"]
    recorder.close()


def test_a_disk_that_is_too_slow_delays_nobody(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_BEHIND_BYTES", 100_000)
    os.mkfifo(tmp_path / "pipe")  # holds 64 KiB, and nobody reads
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    recorder, stopped = made(str(tmp_path / "pipe"))
    arrivals(recorder, 3000)
    assert stopped == ["the disk is too slow"]
    os.close(reader)
    recorder.close()


def test_a_log_has_an_end(tmp_path: Path) -> None:
    recorder, stopped = made(str(tmp_path / "log"), MIB)
    arrivals(recorder, 10_000)
    assert stopped == ["the file has reached 1 MiB"]
    recorder.close()
    assert MIB - 300_000 < (tmp_path / "log").stat().st_size < MIB
    found = replay(tmp_path / "log")
    assert (found.difference, found.ended) == (None, "the file has reached 1 MiB")


def test_what_cannot_be_recorded_ends_the_recording_alone(tmp_path: Path) -> None:
    recorder, stopped = made(str(tmp_path / "log"))
    arrivals(recorder, 2)
    (command,) = recorder.handle(ev.RequestArrived(Request(id="x", model="\ud800")), 1.0)
    assert command.request_id == "x"
    assert re.match("an event cannot be recorded: .*surrogates", stopped[0])
    recorder.close()
    found = replay(tmp_path / "log")
    assert (found.events, found.ended) == (2, stopped[0])


async def moody(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Streams that end well, that break, errors."""
    number = len(seen.body) % 4
    if number == 0:
        writer.write(whole(b"{}", "500 No"))
        return
    writer.write(SSE_HEAD + chunk(event(choices=[{"index": 0, "text": "a"}])))
    await writer.drain()
    await asyncio.sleep(0.005)
    if number == 1:
        writer.close()
        return
    usage = {"prompt_tokens": 150, "completion_tokens": 3}
    writer.write(chunk(event(choices=[{"index": 0, "text": "b", "finish_reason": "stop"}])))
    writer.write(chunk(event(choices=[], usage=usage)) + chunk(b"data: [DONE]\n\n") + chunk(b""))


async def test_a_routers_log_replays_and_holds_no_prompt(
    start_engine: Any, start_router: Any, tmp_path: Path
) -> None:
    engines = [await start_engine(moody) for _ in range(3)]
    path = tmp_path / "log"
    async with start_router([], {"retry_share": 1.0}) as running:
        router = running.router
        header = provenance.header(
            PROFILE.model_copy(
                update={"routing": PROFILE.routing.model_copy(update={"retry_share": 1.0})}
            ),
            seed=1, speed=1.0, wall_s=0.0, now=router.now(),
        )  # fmt: skip
        router.recorder = router.telemetry.recorder = Recorder(
            router.director, claim(str(path)), header, MIB, lambda why: None
        )
        router.decide = router.recorder.handle
        for number, engine in enumerate(engines):
            endpoint = Endpoint(unit=f"u{number}", url=engine.url, models=("m",), engine="vllm")
            router.join(endpoint, State.READY)

        async def ask(number: int) -> int:
            body = {"model": "m", "prompt": "tell no one" * 40 + "x" * number, "stream": True}
            return (await running.post("/v1/completions", body, x_session_id=f"s{number}"))[0]

        statuses = await asyncio.gather(*[ask(n) for n in range(40)])
        router.leave("u1")
        await asyncio.gather(*[ask(n) for n in range(12)])
        assert b"infctl_recording 1.0" in router.metrics()
        router.recorder.close()
    assert statuses.count(200) > 10
    found = replay(path)
    assert found.difference is None, found.difference
    assert found.requests == 52
    kinds = {type(r.item).__name__ for r in EventLog(path.read_bytes())}
    assert kinds >= {"RequestArrived", "FirstByte", "RequestFinished", "LegFailed", "EndpointLeft",
                     "EndpointChanged", "EndpointJoined", "Tick", "Ended"}  # fmt: skip
    assert b"tell no one" not in path.read_bytes()


# --- as a process ---------------------------------------------------------------------------------

FLEET = """\
metadata: {name: recorded}
models: [{name: m, tokenizer: TOKENIZER}]
pools: [{name: p}]
engine: {type: vllm}
routing: {picker: PICKER, retry_share: 1.0, hedge_share: 0.3}
"""


def ask(port: int, prompt: str) -> None:
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 3, "stream": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=15) as answer:
        answer.read()


async def asks(port: int, count: int) -> None:
    """Prompts long enough to be tokenised, that share beginnings."""
    prompts = [f"{n % 3} " + "words and more words " * 100 + f"{n}" for n in range(count)]
    await asyncio.gather(*[asyncio.to_thread(ask, port, prompt) for prompt in prompts])


async def progress(load: Load, by: int) -> None:
    wanted, deadline = load.answered + by, time.monotonic() + 20
    while load.answered < wanted:
        assert time.monotonic() < deadline, load.lost
        await asyncio.sleep(0.05)


@pytest.mark.process
async def test_a_live_routers_log_replays(tmp_path: Path) -> None:
    """Engines that die and come back, an operator, a reload, tokens, streams that go on."""
    profile, log = tmp_path / "p.yaml", tmp_path / "log"
    (tmp_path / "tokenizer").mkdir()
    text = FLEET.replace("TOKENIZER", folder(tmp_path / "tokenizer", gpt2()))
    profile.write_text(text.replace("PICKER", "power-of-two"))
    with engines(3) as running:
        router = Router(tmp_path, running, str(profile), "--record", str(log))
        try:
            load = Load(router.wait_ready().port)
            clients = asyncio.create_task(load.run(8, 12))
            await progress(load, 80)
            await asks(router.port, 12)
            running[0].stop()
            await progress(load, 80)
            profile.write_text(text.replace("PICKER", "best"))
            router.process.send_signal(signal.SIGHUP)
            target = f"/v1/endpoints/{running[1].url.removeprefix('http://')}"
            for action in ("drain", "resume"):
                assert (await asyncio.to_thread(router.ask, "POST", f"{target}/{action}"))[0] == 200
                await progress(load, 30)
            running[0].start()
            await asyncio.gather(asks(router.port, 12), progress(load, 120))
            assert metric(router.port, "infctl_recording ") == 1.0
            assert metric(router.port, "infctl_recorded_bytes_total") > 10_000
            await asyncio.sleep(1.2)  # a tick, and a scrape
            load.stopping = True
            await clients
        finally:
            assert await asyncio.to_thread(router.stop) == 0
    found = replay(log)
    assert found.difference is None, found.difference
    assert (found.notes, found.ended, found.left) == ([], "the router ended", 0)
    items = [r.item for r in EventLog(log.read_bytes())]
    counts = Counter(type(item).__name__ for item in items)
    assert counts["RequestArrived"] == found.requests > 300
    assert counts["Policy"] == 1
    assert min(counts[n] for n in ("LegFailed", "LoadReported", "EndpointChanged", "Tick")) > 0
    failed = [item for item in items if isinstance(item, ev.LegFailed)]
    assert any(item.resumable and item.answered_tokens for item in failed)
    arrived = [item.request for item in items if isinstance(item, ev.RequestArrived)]
    assert any(request.token_blocks for request in arrived)
    other = replay(log, "round-robin")
    assert (other.difference, other.otherwise > 50) == (None, True)


@pytest.mark.process
async def test_each_worker_has_a_log_that_a_kill_leaves_readable(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with engines(2) as running:
        router = Router(tmp_path, running, "--workers", "2", "--record", str(log))
        try:
            load = Load(router.wait_ready().port)
            clients = asyncio.create_task(load.run(16, 0))
            await progress(load, 200)
            await asks(router.port, 12)
            await asyncio.sleep(1.5)
            os.kill((await asyncio.to_thread(router.children))[1], signal.SIGKILL)
            await progress(load, 200)
            await asyncio.sleep(2.0)
            await asks(router.port, 12)
            load.stopping = True
            await clients
        finally:
            assert await asyncio.to_thread(router.stop) == 0
    ends = {}
    for name in ("log.0", "log.1", "log.1.old"):
        found = replay(tmp_path / name)
        assert found.difference is None, (name, found.difference)
        assert found.requests > 0
        ends[name] = found.ended
        kinds = Counter(type(r.item).__name__ for r in EventLog((tmp_path / name).read_bytes()))
        assert kinds["PeersReported"] > 10
    assert ends == {"log.0": "the router ended", "log.1": "the router ended", "log.1.old": ""}
    kinds = Counter(type(r.item).__name__ for r in EventLog((tmp_path / "log.0").read_bytes()))
    assert kinds["PrefixesReported"] > 0


@pytest.mark.process
async def test_a_full_disk_is_told_and_costs_no_request(tmp_path: Path) -> None:
    with engines(1) as running:
        router = Router(tmp_path, running, "--record", "/dev/full")
        try:
            load = Load(router.wait_ready().port)
            await load.run(4, 1, seconds=2.5)
            assert (load.lost, load.answered > 20) == ([], True)
            assert metric(router.port, "infctl_recording ") == 0.0
        finally:
            assert await asyncio.to_thread(router.stop) == 0
    assert 'recording_stopped file=/dev/full reason="No space left' in router.log.read_text()


@pytest.mark.process
def test_a_file_that_cannot_be_refuses_the_start(tmp_path: Path) -> None:
    for words in ([], ["--workers", "2"]):
        router = Router(tmp_path, [], "--endpoint", "http://127.0.0.1:9", *words,
                        "--record", str(tmp_path / "nowhere" / "log"))  # fmt: skip
        assert router.process.wait(20) == 4
        assert router.stop() == 4
        assert "nowhere/log" in router.log.read_text()
