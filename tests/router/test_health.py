"""Who may take traffic: probes, identity, detection, loads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from infctl import compose
from infctl.core.fleet import Endpoint, State
from infctl.profile.model import Health
from infctl.router.discovery import Discovery, from_urls

from .conftest import Running, Seen, whole

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


def watch(running: Running, endpoints: list[Endpoint], failures: int = 2) -> Discovery:
    kinds = {name: compose.engine(name) for name in compose.names("engine")}
    health = Health(interval_s=0.25, timeout_s=0.5, failures=failures)
    discovery = Discovery(running.router, kinds, health)
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
            in running.router.own_page(b"/metrics")[1]
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
