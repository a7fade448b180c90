"""Who may take traffic: probes, identity, detection, loads."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec

from infctl import compose, state
from infctl.actuator import RESTART_FILE, RestartRequest, UnitStatus
from infctl.core.fleet import Endpoint, State
from infctl.core.life import Cause
from infctl.profile.model import Health
from infctl.router.discovery import Discovery, from_urls
from infctl.router.pages import own_page
from infctl.router.upstream import Pool
from infctl.state import FleetState, UnitFile

from .conftest import SSE_HEAD, Running, Seen, chunk, event, whole

VLLM_METRICS = (
    'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
)


def engine_like(model: str = "m", owner: str = "vllm", metrics: str | None = VLLM_METRICS) -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target == "/health":
            writer.write(whole(b""))
        elif seen.target == "/v1/models":
            card = {"id": model, "object": "model", "owned_by": owner, "max_model_len": 2048}
            writer.write(whole(json.dumps({"object": "list", "data": [card]}).encode()))
        elif seen.target == "/metrics" and metrics is not None:
            writer.write(whole(metrics.encode(), kind="text/plain"))
        else:
            writer.write(whole(b"{}", "404 Not Found"))

    return script


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def watch(running: Running, endpoints: list[Endpoint], **options: Any) -> Discovery:
    kinds = {name: compose.engine(name) for name in compose.names("engine")}
    health = Health.model_validate({"interval_s": 0.25, "timeout_s": 0.3} | options)
    running.router.lives.configure(health, 4.0)
    discovery = Discovery(running.router, kinds, health, speed=4.0)
    discovery.update(endpoints)
    return discovery


def states(running: Running) -> dict[str, str]:
    fleet = running.router.director.fleet
    return {e.id: fleet.states[slot].value for slot, e in fleet}


async def test_given_urls_are_recognised_and_loaded(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(engine_like())
    async with start_router([]) as running:
        discovery = watch(running, from_urls([engine.url]))
        await until(lambda: "ready" in states(running).values())
        fleet = running.router.director.fleet
        slot, endpoint = next(iter(fleet))
        assert (endpoint.engine, endpoint.models, endpoint.context_tokens) == ("vllm", ("m",), 2048)
        await until(lambda: fleet.loads[slot] is not None)
        figures = (fleet.running[slot], fleet.waiting[slot], fleet.kv_usage[slot])
        assert figures == (3.0, 2.0, 0.25)
        discovery.close()


async def test_an_unknown_kind_is_routed_to_with_one_warning(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(engine_like(owner="somebody", metrics=None))
    async with start_router([]) as running:
        discovery = watch(running, from_urls([engine.url]))
        await until(lambda: "ready" in states(running).values())
        await asyncio.sleep(0.6)
        running.router.telemetry.flush()
        assert running.log.getvalue().count("unrecognised_engine") == 1
        discovery.close()


async def test_an_endpoint_out_of_reach_is_told_once(start_router: Any) -> None:
    async with start_router([]) as running:
        discovery = watch(running, from_urls(["http://127.0.0.1:9"]))
        await asyncio.sleep(0.7)
        running.router.telemetry.flush()
        lines = running.log.getvalue().splitlines()
        assert len(lines) == 1
        told = json.loads(lines[0])
        assert (told["event"], told["url"]) == ("not_healthy", "http://127.0.0.1:9")
        assert told["reason"] == "refuses connections"
        discovery.close()


async def test_an_address_that_serves_another_model_gets_no_traffic(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(engine_like(model="other"))
    async with start_router([]) as running:
        endpoint = Endpoint(unit="u0", url=engine.url, models=("m",), engine="vllm")
        discovery = watch(running, [endpoint])
        await asyncio.sleep(0.4)
        assert states(running) == {"u0": "starting"}
        discovery.close()


async def test_failing_probes_eject_and_one_success_brings_back(
    start_engine: Any, start_router: Any
) -> None:
    sick = False

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if sick and seen.target == "/health":
            writer.write(whole(b"", "503 Sick"))
        else:
            await engine_like()(seen, writer)

    engine = await start_engine(script)
    async with start_router([]) as running:
        discovery = watch(
            running, [Endpoint(unit="u0", url=engine.url, models=("m",), engine="vllm")]
        )
        await until(lambda: states(running) == {"u0": "ready"})
        sick = True
        await until(lambda: states(running) == {"u0": "ejected"})
        sick = False
        await until(lambda: states(running) == {"u0": "ready"})
        discovery.close()


async def test_a_missing_metric_is_told_and_never_zero(
    start_engine: Any, start_router: Any
) -> None:
    metrics = VLLM_METRICS.replace("vllm:num_requests_waiting", "vllm:renamed_queue")
    engine = await start_engine(engine_like(metrics=metrics))
    async with start_router([]) as running:
        discovery = watch(
            running, [Endpoint(unit="u0", url=engine.url, models=("m",), engine="vllm")]
        )
        await until(lambda: running.router.telemetry.missing_series.get("u0"))
        load = running.router.director.fleet.loads[0]
        assert load is not None
        assert (load.waiting, load.running) == (None, 3.0)
        assert (
            b'infctl_endpoint_missing_series{endpoint="u0",pool=""}'
            in own_page(running.router, b"/metrics")[1]
        )
        discovery.close()


async def test_a_replaced_unit_is_another_endpoint(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(engine_like())
    async with start_router([]) as running:
        first = Endpoint(unit="u0", url=engine.url, models=("m",), engine="vllm")
        discovery = watch(running, [first])
        await until(lambda: states(running) == {"u0": "ready"})
        again = Endpoint(unit="u0", url=engine.url, models=("m",), engine="vllm", generation=1)
        discovery.update([again])
        assert states(running) == {"u0": "starting"}
        discovery.update([])
        assert states(running) == {}
        assert running.router.pools == {}
        assert State.STARTING.value == "starting"
        discovery.close()


def unit(url: str, **more: Any) -> Endpoint:
    return Endpoint(unit="u0", url=url, models=("m",), engine="vllm", **more)


class Moody:
    """An engine whose answers a test changes as it goes."""

    def __init__(self) -> None:
        self.text = "well and good"
        self.mute = False
        self.canaries = 0
        self.progress = False

    async def __call__(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.headers["x-request-id"] != "probe":
            await self._stream(writer)
        elif self.mute:
            await asyncio.sleep(30)
        elif seen.method == "POST":
            self.canaries += 1
            writer.write(whole(json.dumps({"choices": [{"text": self.text}]}).encode()))
        else:
            await engine_like()(seen, writer)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _ in range(300):
            if self.progress:
                writer.write(chunk(event(text="a")))
                await writer.drain()
            await asyncio.sleep(0.05)


async def test_an_endpoint_is_verified_before_it_takes_traffic_and_counts_nowhere(
    start_engine: Any, start_router: Any
) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)])
        await until(lambda: states(running) == {"u0": "ready"})
        router = running.router
        moves = [line for line in log(running) if line["event"] == "endpoint"]
        assert [m["state"] for m in moves] == ["verifying", "ready"]
        assert engine.canaries == 3
        assert (len(router.director.index), len(router.director.ledger)) == (0, 0)
        assert router.telemetry.stats("u0").requests == 0
        discovery.close()


def log(running: Running) -> list[dict[str, Any]]:
    running.router.telemetry.flush()
    return [json.loads(line) for line in running.log.getvalue().splitlines()]


async def test_one_that_comes_back_with_garbage_stays_out_until_an_operator_accepts(
    start_engine: Any, start_router: Any
) -> None:
    engine = Moody()
    started = await start_engine(engine)
    asked: list[str] = []
    async with start_router([]) as running:
        router = running.router
        router.lives.restart = lambda _, restart: not asked.append(restart.reason)
        discovery = watch(running, [unit(started.url)])
        await until(lambda: states(running) == {"u0": "ready"})
        engine.text = "garbage"
        router.lives.refused(0, "refuses connections")
        await until(lambda: router.telemetry.stats("u0").canary_failures)
        assert states(running) == {"u0": "ejected"}
        await until(lambda: "'garbage' instead of 'well and good'" in asked[-1])
        row = router.lives.describe(0)
        assert 0.25 < row["retry_in_s"] <= 0.5
        assert "differ" in row["reason"]
        router.lives.act("u0", "resume")
        await until(lambda: states(running) == {"u0": "ready"})
        discovery.close()


async def test_an_engine_whose_counters_begin_anew_is_verified_again(
    start_engine: Any, start_router: Any
) -> None:
    engine, tokens, model = Moody(), 500, "m"

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.method == "GET":
            metrics = f'vllm:prompt_tokens_total{{engine="0",model_name="m"}} {tokens}.0\n'
            await engine_like(model, metrics=VLLM_METRICS + metrics)(seen, writer)
        else:
            await engine(seen, writer)

    started = await start_engine(script)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)])
        await until(lambda: states(running) == {"u0": "ready"})
        tokens = 600
        await asyncio.sleep(0.6)
        assert (states(running), engine.canaries) == ({"u0": "ready"}, 3)
        tokens = 7
        await until(lambda: engine.canaries == 6)
        await until(lambda: states(running) == {"u0": "ready"})
        tokens, model = 3, "other"
        await until(lambda: states(running) == {"u0": "starting"})
        await until(lambda: any(line["event"] == "wrong_model" for line in log(running)))
        assert states(running) == {"u0": "starting"}
        discovery.close()


async def test_verifying_can_be_turned_off(start_engine: Any, start_router: Any) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)], verify=False)
        await until(lambda: states(running) == {"u0": "ready"})
        assert engine.canaries == 0
        discovery.close()


async def test_one_that_takes_connections_and_never_answers_is_ejected(
    start_engine: Any, start_router: Any
) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)])
        await until(lambda: states(running) == {"u0": "ready"})
        engine.mute = True
        await until(lambda: states(running) == {"u0": "ejected"})
        assert running.router.lives.of("u0").cause is Cause.PROBE
        discovery.close()


async def test_one_that_is_late_but_streams_is_alive_and_dead_once_it_stops(
    start_engine: Any, start_router: Any
) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)])
        await until(lambda: states(running) == {"u0": "ready"})
        engine.progress = engine.mute = True
        body = {"model": "m", "prompt": "x", "stream": True}
        stream = asyncio.ensure_future(running.post("/v1/completions", body))
        await asyncio.sleep(1.0)
        assert states(running) == {"u0": "ready"}
        engine.progress = False
        await until(lambda: states(running) == {"u0": "ejected"})
        stream.cancel()
        discovery.close()


async def test_a_suspect_is_probed_at_once_and_out_with_the_first_failure(
    start_engine: Any, start_router: Any
) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        options = {"interval_s": 60.0, "timeout_s": 0.2, "failures": 9}
        discovery = watch(running, [unit(started.url)], **options)
        await until(lambda: states(running) == {"u0": "ready"})
        await asyncio.sleep(0.1)
        probes = len(started.seen)
        for _ in range(100):
            running.router.suspect(0, "a stream stalls")
        await until(lambda: len(started.seen) > probes)
        await asyncio.sleep(0.1)
        assert len(started.seen) <= probes + 4
        assert states(running) == {"u0": "ready"}
        engine.mute = True
        running.router.suspect(0, "a stream stalls")
        await until(lambda: states(running) == {"u0": "ejected"})
        discovery.close()


async def test_an_idle_connection_that_just_closed_is_no_failed_probe(
    start_engine: Any, start_router: Any
) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await engine_like()(seen, writer)
        if seen.target == "/metrics":
            await writer.drain()
            writer.close()

    engine = await start_engine(script)
    async with start_router([]) as running:
        discovery = watch(running, [unit(engine.url)], failures=1)
        await until(lambda: states(running) == {"u0": "ready"})
        await asyncio.sleep(0.7)
        assert states(running) == {"u0": "ready"}
        assert not running.router.telemetry.stats("u0").ejections
        discovery.close()


async def test_probes_do_not_touch_load_counters(start_engine: Any, start_router: Any) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)])
        await until(lambda: states(running) == {"u0": "ready"})
        engine.progress = True
        body = {"model": "m", "prompt": "x", "stream": True}
        stream = asyncio.ensure_future(running.post("/v1/completions", body))
        await asyncio.sleep(0.6)
        director = running.router.director
        assert (director.inflight.own(0), director.fleet.pending[0]) == (1.0, 0.0)
        running.router.lives.act("u0", "drain")
        await asyncio.sleep(0.3)
        assert director.inflight.own(0) == 1.0
        stream.cancel()
        discovery.close()


async def test_descriptors_that_run_out_here_say_nothing_of_endpoints(
    start_engine: Any, start_router: Any, monkeypatch: Any
) -> None:
    engine = Moody()
    started = await start_engine(engine)
    async with start_router([]) as running:
        discovery = watch(running, [unit(started.url)], failures=1)
        await until(lambda: states(running) == {"u0": "ready"})

        async def exhausted(*_: Any) -> Any:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(Pool, "get", exhausted)
        await until(
            lambda: any(x.get("reason", "").startswith("cannot probe") for x in log(running))
        )
        assert states(running) == {"u0": "ready"}
        discovery.close()


async def test_a_unit_waits_for_its_supervisors_word(
    start_engine: Any, start_router: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    """The address answers, but by its supervisor the unit does not run: that is somebody else."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    started = await start_engine(Moody())
    status = UnitStatus(
        name="u0", pool="p", cluster="c", role="unified", engine="vllm", models=("m",),
        revision="r", generation=1, state="ready", phase="", url=started.url,
        supervisor_pid=os.getpid(),
    )  # fmt: skip

    def write(**changes: Any) -> None:
        unit = msgspec.structs.replace(status, **changes)
        file = UnitFile(unit, state.started(os.getpid()))
        folder = state.create(state.unit_path("f", "u0"))
        state.write(folder / "status.json", msgspec.json.encode(file))
        state.save(FleetState(profile="f", units=(unit,)))

    async with start_router([]) as running:
        discovery = watch(running, [])
        write()
        follow = asyncio.ensure_future(discovery.follow_state("f", {}))
        await until(lambda: states(running) == {"u0": "ready"})
        write(state="ejected", error="rank 0 exited with code 7\nand more")
        await until(lambda: states(running) == {"u0": "ejected"})
        life = running.router.lives.of("u0")
        assert life is not None
        assert life.reason == "its supervisor says: rank 0 exited with code 7"
        await asyncio.sleep(0.7)
        assert states(running) == {"u0": "ejected"}
        write(state="ready", generation=2)
        await until(lambda: states(running) == {"u0": "ready"})
        assert running.router.director.fleet.slots[0].generation == 2
        running.router.lives.refused(0, "refuses connections")
        asked = state.unit_path("f", "u0") / RESTART_FILE
        request = msgspec.json.decode(asked.read_bytes(), type=RestartRequest)
        assert request == RestartRequest(2, "refuses connections", check=True)
        follow.cancel()
        discovery.close()
