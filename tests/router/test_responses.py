"""`/v1/responses` ids stick to their engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from infctl.core.fleet import Endpoint, State
from infctl.router.responses import Responses

from .conftest import SSE_HEAD, Seen, chunk, whole

BODY = {"model": "m", "input": "Hello"}
PATH = "/v1/responses"


def engine(name: str) -> Any:
    """Answers with an id of its own, streams in pieces of 7 bytes with a chunk each."""

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(seen.body)
        response = {"id": f"resp_{name}", "object": "response", "status": "completed"}
        if not asked.get("stream"):
            writer.write(whole(json.dumps(response).encode()))
            return
        created = json.dumps({"response": response, "type": "response.created"})
        events = f"event: response.created\ndata: {created}\n\n".encode()
        writer.write(SSE_HEAD)
        for at in range(0, len(events), 7):
            writer.write(chunk(events[at : at + 7]))
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(chunk(b""))

    return script


async def start(start_engine: Any) -> list[Any]:
    return [await start_engine(engine(str(number))) for number in range(3)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_goes_where_the_response_is(
    stream: bool, start_engine: Any, start_router: Any
) -> None:
    engines = await start(start_engine)
    async with start_router(engines, {"picker": "round-robin"}) as running:
        for _ in range(3):
            assert (await running.post(PATH, BODY | {"stream": stream}))[0] == 200
        assert len(running.router.responses) == 3
        for number in (2, 0, 1, 1, 2):
            again = BODY | {"previous_response_id": f"resp_{number}"}
            status, headers, _ = await running.post(PATH, again)
            assert (status, headers["x-infctl-endpoint"]) == (200, f"u{number}")
            assert json.loads(engines[number].seen[-1].body) == again


@pytest.mark.parametrize("how", ["draining", "gone", "another generation"])
async def test_it_is_a_404_when_that_endpoint_cannot_serve(
    how: str, start_engine: Any, start_router: Any
) -> None:
    engines = await start(start_engine)
    async with start_router(engines, {"picker": "round-robin"}) as running:
        router = running.router
        _, headers, _ = await running.post(PATH, BODY)
        name = headers["x-infctl-endpoint"]
        if how == "draining":
            router.change(name, State.DRAINING, "test")
        elif how == "gone":
            router.leave(name)
        else:
            url = engines[int(name[1:])].url
            unit = Endpoint(unit=name, url=url, models=("m",), generation=1)
            router.join(unit, State.READY)
        again = BODY | {"previous_response_id": f"resp_{name[1:]}"}
        status, _, answer = await running.post(PATH, again)
        error = json.loads(answer)["error"]
        assert (status, error["code"], error["type"]) == (404, 404, "NotFoundError")
        assert "previous_response_id" in error["message"]
        # An id nobody here gave is for the engines to judge.
        unknown = BODY | {"previous_response_id": "resp_other"}
        assert (await running.post(PATH, unknown))[0] == 200


async def test_it_is_retried_at_the_same_endpoint_alone(
    start_engine: Any, start_router: Any
) -> None:
    engines = await start(start_engine)
    async with start_router(engines, {"picker": "round-robin"}) as running:
        _, headers, _ = await running.post(PATH, BODY)
        number = int(headers["x-infctl-endpoint"][1:])
        counts = [len(e.seen) for e in engines]

        async def fails(seen: Seen, writer: asyncio.StreamWriter) -> None:
            writer.write(whole(b"{}", "500 Oops"))

        engines[number].script = fails
        status, _, _ = await running.post(PATH, BODY | {"previous_response_id": f"resp_{number}"})
        assert status == 502
        grown = [len(e.seen) - before for e, before in zip(engines, counts, strict=True)]
        assert grown == [3 if n == number else 0 for n in range(3)]


async def test_what_failed_or_has_no_id_is_not_kept(start_engine: Any, start_router: Any) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        bad = b"bad" in seen.body
        body = b'{"id": "resp_x"}' if bad else b'{"text":"' + b"x" * 20_000 + b'","id":"resp_y"}'
        writer.write(whole(body, "400 Bad Request" if bad else "200 OK"))

    one = await start_engine(script)
    async with start_router([one]) as running:
        assert (await running.post(PATH, BODY | {"input": "bad"}))[0] == 400
        assert (await running.post(PATH, BODY))[0] == 200
        assert len(running.router.responses) == 0


def test_the_least_recently_used_is_forgotten_and_tenants_are_apart() -> None:
    kept = Responses(kept_max=2)
    one, other = (Endpoint(unit=u, url="", models=()) for u in "ab")
    kept.given("t", "1", one)
    kept.given("u", "1", other)
    assert (kept.giver("t", "1"), kept.giver("u", "1")) == (("a", 0), ("b", 0))
    assert kept.giver("t", "1")  # used last
    kept.given("t", "2", one)
    assert kept.giver("u", "1") is None
    assert kept.giver("t", "1") == ("a", 0)
    assert len(kept) == 2
