"""Sleep and faults, over a real socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from infctl.timing import Decode

from .conftest import FAST

if TYPE_CHECKING:
    from .conftest import Emulator, Start

BODY: dict[str, Any] = {"prompt": "abcd" * 10, "max_tokens": 20, "ignore_eos": True}
SLOW = msgspec.structs.replace(FAST, decode=Decode(20.0, 0.0, 0.0, 0.0))


async def fault(emulator: Emulator, **body: Any) -> None:
    """Set a fault that must be accepted."""
    answer = await emulator.client.post("/fault", json=body)
    assert answer.status_code == 200, answer.text


async def hangs(emulator: Emulator) -> asyncio.Task[dict[str, Any]]:
    """A completion that is not answered within 50 ms."""
    task = asyncio.ensure_future(emulator.complete(**BODY))
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    return task


@pytest.mark.parametrize(
    ("dialect", "sleep", "wake"),
    [
        ("vllm", "/sleep?level=1", "/wake_up"),
        ("sglang", "/release_memory_occupation", "/resume_memory_occupation"),
    ],
)
async def test_a_sleeping_engine_hangs_requests(
    start: Start, dialect: str, sleep: str, wake: str
) -> None:
    emulator = await start(dialect=dialect)
    await emulator.complete(**BODY)
    assert (await emulator.client.post(sleep)).status_code == 200
    task = await hangs(emulator)
    assert (await emulator.client.get("/health")).status_code == 200
    assert (await emulator.client.post(wake)).status_code == 200
    usage = (await asyncio.wait_for(task, 2))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_sleep_is_seen_and_takes_its_time(start: Start) -> None:
    timing = msgspec.structs.replace(FAST, sleep_s=0.4, wake_s=0.2)
    emulator = await start(timing=timing, speed=4)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await emulator.client.post("/sleep?level=2")
    assert 0.09 <= loop.time() - began < 0.3
    assert (await emulator.client.get("/is_sleeping")).json() == {"is_sleeping": True}
    state = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"}'
    assert await emulator.metric(state) == 1
    began = loop.time()
    await emulator.client.post("/wake_up")
    assert 0.04 <= loop.time() - began < 0.25
    assert (await emulator.client.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert await emulator.metric(state) == 0


async def test_sleep_ends_what_runs(start: Start) -> None:
    emulator = await start(timing=SLOW)
    task = asyncio.ensure_future(emulator.complete(**BODY))
    await emulator.until(lambda: bool(emulator.engine.loop.answers))
    await emulator.client.post("/sleep")
    assert (await task)["choices"][0]["finish_reason"] == "abort"


async def test_sleep_levels_are_checked(emulator: Emulator) -> None:
    assert (await emulator.client.post("/sleep?level=9")).status_code == 400


async def test_waking_twice_is_harmless(emulator: Emulator) -> None:
    for _ in range(2):
        assert (await emulator.client.post("/wake_up")).status_code == 200
    await emulator.complete(**BODY)


async def test_a_stalled_engine_takes_requests_and_says_nothing(emulator: Emulator) -> None:
    await fault(emulator, mode="stall")
    task = await hangs(emulator)
    await fault(emulator, mode="none")
    assert (await asyncio.wait_for(task, 2))["usage"]["completion_tokens"] == 20


async def test_a_fault_ends_by_itself(start: Start) -> None:
    emulator = await start(speed=2)
    await fault(emulator, mode="stall", for_s=0.25)
    task = await hangs(emulator)
    await asyncio.wait_for(task, 2)


async def test_a_stall_in_the_middle_of_a_stream(start: Start) -> None:
    emulator = await start(timing=msgspec.structs.replace(FAST, decode=Decode(8.0, 0.0, 0.0, 0.0)))
    await fault(emulator, mode="stall", after_tokens=5)
    task = asyncio.ensure_future(emulator.events("/v1/completions", **BODY))
    generated = emulator.engine.loop.replica.load
    await emulator.until(lambda: emulator.engine.loop.clock.rate == 0)
    answer = next(iter(emulator.engine.loop.answers.values()))
    seen = answer.sent
    assert 5 <= seen < 20
    await asyncio.sleep(0.05)
    assert answer.sent == seen
    assert generated(emulator.engine.loop.clock.now_ms()).running == 1
    await fault(emulator, mode="none")
    assert len(await asyncio.wait_for(task, 2)) == 21


async def test_a_slow_engine(start: Start) -> None:
    emulator = await start(speed=8)
    await fault(emulator, mode="slow", factor=4)
    assert emulator.engine.loop.clock.rate == 2
    await emulator.complete(**BODY)
    await fault(emulator, mode="none")
    assert emulator.engine.loop.clock.rate == 8


async def test_an_engine_that_answers_with_errors(emulator: Emulator) -> None:
    await fault(emulator, mode="error", status=503)
    answer = await emulator.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == 503
    await fault(emulator, mode="none")
    await emulator.complete(**BODY)


async def test_an_error_in_the_middle_of_a_stream(start: Start) -> None:
    emulator = await start(timing=SLOW)
    await fault(emulator, mode="error", after_tokens=3)
    events = await emulator.events("/v1/completions", **BODY)
    assert events[-1] == "[DONE]"
    assert '"error"' in events[-2]
    assert 3 <= len(events) - 2 < 20
    assert emulator.engine.loop.replica.load(0.0).running <= 1


async def test_dying_after_some_tokens(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("infctl.emulator.engine.os._exit", codes.append)
    emulator = await start()
    await fault(emulator, mode="die", after_tokens=30)
    await emulator.complete(**BODY)
    assert codes == []
    await emulator.complete(**BODY)
    await emulator.until(lambda: codes == [1])


@pytest.mark.parametrize(
    "body",
    [
        {"mode": "explode"},
        {"mode": "error", "status": 200},
        {"mode": "slow", "factor": 0},
        {"mode": "stall", "for_s": -1},
        {"mode": "stall", "nonsense": 1},
    ],
)
async def test_faults_that_are_refused(emulator: Emulator, body: dict[str, Any]) -> None:
    answer = await emulator.client.post("/fault", json=body)
    assert answer.status_code == 400
    assert "fault" in answer.json()["error"]["message"]


async def test_a_fault_from_the_command_line(start: Start) -> None:
    from infctl.emulator.faults import Fault

    emulator = await start(fault=Fault(mode="error", status=429))
    answer = await emulator.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 429
