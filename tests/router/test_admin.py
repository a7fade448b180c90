"""The admin API, and what an operator's hand on an endpoint does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from infctl.errors import UsageError
from infctl.profile.model import Limits
from infctl.router.admin import Admin
from infctl.router.discovery import from_urls
from infctl.router.server import Server

from .conftest import Running, Seen, split, whole


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.05)
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    writer.write(whole(json.dumps({"usage": usage}).encode()))


async def ask(
    running: Running, tmp_path: Any, method: str, target: str, body: bytes = b""
) -> tuple[int, Any]:
    path = str(tmp_path / "admin.sock")

    async def reload() -> tuple[int, Any]:
        return 200, {"applied": [], "kept": []}

    server = Server(Admin(running.router, lambda: [{"model": "m"}], reload), Limits())
    listener = await asyncio.get_running_loop().create_unix_server(server, path)
    reader, writer = await asyncio.open_unix_connection(path)
    head = f"{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status, _, body = split(await reader.read())
    writer.close()
    listener.close()
    return status, json.loads(body)


async def test_the_fleet_with_its_figures(
    start_engine: Any, start_router: Any, tmp_path: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        await running.post("/v1/completions", {"model": "m", "prompt": "x"})
        status, fleet = await ask(running, tmp_path, "GET", "/v1/fleet")
    assert status == 200
    assert fleet["policy"] == "predicted-ttft"
    row = fleet["endpoints"][0]
    assert (row["id"], row["state"], row["requests"], row["hit_rate"]) == ("u0", "ready", 1, 0.4)
    assert (row["kv_usage"], row["ttft_ms"]) == (None, {"p50": None, "p99": None})
    assert (fleet["totals"]["requests"], fleet["totals"]["output_tokens"]) == (1, 2)


async def test_drain_lets_work_finish_and_resume_waits_for_a_probe(
    start_engine: Any, start_router: Any, tmp_path: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        work = asyncio.ensure_future(running.post("/v1/completions", {"model": "m", "prompt": "x"}))
        await asyncio.sleep(0.02)
        _, row = await ask(running, tmp_path, "POST", "/v1/endpoints/u0/drain")
        assert (row["state"], row["inflight"]) == ("draining", 1)
        assert (await running.post("/v1/completions", {"model": "m", "prompt": "x"}))[0] == 503
        assert (await work)[0] == 200
        _, row = await ask(running, tmp_path, "POST", "/v1/endpoints/u0/resume")
        assert row["state"] == "starting"


async def test_eject_moves_work_elsewhere_and_stays_out(
    start_engine: Any, start_router: Any, tmp_path: Any
) -> None:
    engines = [await start_engine(echo) for _ in range(2)]
    async with start_router(engines, {"picker": "round-robin"}) as running:
        work = asyncio.ensure_future(running.post("/v1/completions", {"model": "m", "prompt": "x"}))
        await asyncio.sleep(0.02)
        _, row = await ask(running, tmp_path, "POST", "/v1/endpoints/u0/eject")
        assert (row["state"], row["inflight"]) == ("ejected", 0)
        status, headers, _ = await work
        assert (status, headers["x-infctl-endpoint"]) == (200, "u1")


async def test_decisions_tell_what_was_expected_and_what_came_true(
    start_engine: Any, start_router: Any, tmp_path: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        await running.post(
            "/v1/completions", {"model": "m", "prompt": "x" * 40}, X_Request_Id="mine"
        )
        status, found = await ask(running, tmp_path, "GET", "/v1/decisions/mine")
        _, everything = await ask(running, tmp_path, "GET", "/v1/decisions")
        assert (await ask(running, tmp_path, "GET", "/v1/decisions/nope"))[1]["decisions"] == []
    (decision,) = found["decisions"]
    assert (status, found["policy"]) == (200, "predicted-ttft")
    assert everything["decisions"][0]["request"] == "mine"
    assert (decision["endpoint"], decision["outcome"]) == ("u0", "answered")
    assert decision["actual"] == {"ttft_ms": None, "cached_tokens": 4}
    assert decision["expected"]["cached_tokens"] == 0
    (row,) = decision["endpoints"]
    assert row["picked"]
    assert row["total"] == row["scores"]["predicted-ttft"] < 0


async def test_a_request_is_explained_without_being_sent(
    start_engine: Any, start_router: Any, tmp_path: Any
) -> None:
    engines = [await start_engine(echo) for _ in range(2)]
    async with start_router(engines) as running:
        await ask(running, tmp_path, "POST", "/v1/endpoints/u1/drain")
        body = b'{"model": "m", "prompt": "' + b"word " * 100 + b'"}'
        status, found = await ask(running, tmp_path, "POST", "/v1/explain", body)
        bad, _ = await ask(running, tmp_path, "POST", "/v1/explain", b"{")
    assert (status, bad) == (200, 400)
    assert [(r["endpoint"], r["dropped_by"]) for r in found["endpoints"]] == [
        ("u0", None),
        ("u1", "ready"),
    ]
    assert found["prompt_tokens"] == 125
    assert not engines[0].seen


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/v1/endpoints/nope", 404),
        ("POST", "/v1/endpoints/u0/explode", 404),
        ("DELETE", "/v1/fleet", 404),
        ("GET", "/", 404),
        ("GET", "/v1/route-table", 200),
        ("GET", "/v1/endpoints/u0", 200),
    ],
)
async def test_what_there_is_and_what_there_is_not(
    method: str, target: str, expected: int, start_engine: Any, start_router: Any, tmp_path: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        assert (await ask(running, tmp_path, method, target))[0] == expected


@pytest.mark.parametrize(
    "url", ["ftp://a:1", "http://a", "https://a", "http://a:1/x", "http://a:99999", "a b", ""]
)
def test_bad_endpoint_urls_are_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="is not an endpoint"):
        from_urls([url])


def test_urls_may_leave_out_the_scheme_and_repeat() -> None:
    endpoints = from_urls(["127.0.0.1:8001", "http://127.0.0.1:8001/", "https://[::1]:80"])
    assert [e.url for e in endpoints] == ["http://127.0.0.1:8001", "https://[::1]:80"]


def test_credentials_in_an_endpoints_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="no credentials") as caught:
        from_urls(["http://me:hidden@127.0.0.1:8001"])
    assert "hidden" not in str(caught.value)
