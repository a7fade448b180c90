"""API keys: who gets in, to what, how much of it; and that no key is seen where it should not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.profile.keyfile import Key, digest
from infctl.router.keys import Account, Bucket, Keyring
from infctl.router.wire import parse_head

from .conftest import SSE_HEAD, Running, Seen, chunk, event, split, whole

SECRET = "sk-0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
OTHER = "sk-another"
BODY: dict[str, Any] = {"model": "m", "prompt": "x" * 400}
GET = b"GET %s HTTP/1.1\r\nHost: r\r\nConnection: close\r\n%s\r\n"
USAGE = b'{"usage": {"prompt_tokens": 90, "completion_tokens": 30}}'


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(USAGE))


def lock(running: Running, *keys: Key, wall: float = 0.0) -> Keyring:
    """Let in only those who have one of the keys (default: one that may do anything)."""
    ring = running.router.keys = Keyring(lambda: wall)
    ring.replace([(key, 0) for key in keys or (key(),)], running.router.now())
    return ring


def key(secret: str = SECRET, name: str = "one", **fields: Any) -> Key:
    return Key(name=name, sha256=digest(secret), **fields)


def bearer(secret: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def running_now(ring: Keyring) -> int:
    return sum(account.running for account in ring._accounts.values())


# --- who ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        bearer(),
        {"authorization": f"bearer  {SECRET} "},
        {"X-Api-Key": SECRET},
        {"Authorization": "Basic YTpi", "X-Api-Key": SECRET},
    ],
)
async def test_a_key_opens_in_either_header(
    headers: dict[str, str], start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        lock(running, key(tenant="acme"))
        status, _, _ = await running.post("/v1/completions", BODY, **headers)
    assert status == 200
    assert not {"authorization", "x-api-key"} & set(engine.seen[0].headers)
    assert SECRET not in str(engine.seen[0])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(OTHER),
        bearer(SECRET[:-1]),
        bearer(digest(SECRET)),
        {"Authorization": SECRET},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {OTHER}", "X-Api-Key": SECRET},
        {"X-Api-Key": OTHER},
        {"Cookie": f"api_key={SECRET}"},
    ],
)
async def test_without_a_key_nothing_passes(
    headers: dict[str, str], start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        lock(running)
        status, answered, body = await running.post("/v1/completions", BODY, **headers)
        assert running.router.telemetry.refused == {401: 1}
    assert (status, answered["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body)["error"]["type"] == "AuthenticationError"
    assert not engine.seen


async def test_a_key_ends_when_it_expires(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        for wall, expected in ((999.0, 200), (1000.0, 401)):
            lock(running, key(expires="1970-01-01T00:16:40Z"), wall=wall)
            assert (await running.post("/v1/completions", BODY, **bearer()))[0] == expected


async def test_a_body_is_not_awaited_from_who_may_not_send_it(start_router: Any) -> None:
    async with start_router([]) as running:
        lock(running)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\n"
        for framing in (b"Content-Length: 5000000", b"Transfer-Encoding: chunked"):
            expects = head + framing + b"\r\nExpect: 100-continue\r\n\r\n"
            raw = await running.raw(expects, wait_s=1.0)
            assert raw.startswith(b"HTTP/1.1 401")
        assert (await running.raw(head + b"Content-Length: 20\r\n\r\n{", 1.0))[9:12] == b"401"
        # A malformed body is no reason to parse it before the key is seen.
        assert (await running.post("/v1/completions", b"{", **bearer(OTHER)))[0] == 401


async def test_without_keys_credentials_are_the_engines_business(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        await running.post("/v1/completions", BODY, **bearer(OTHER))
    assert engine.seen[0].headers["authorization"] == f"Bearer {OTHER}"


# --- what -----------------------------------------------------------------------------------------


async def test_own_pages_under_keys(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine], models=("m", "n")) as running:
        lock(running, key(models=["n"]))
        auth = f"Authorization: Bearer {SECRET}\r\n".encode()
        raw = {
            path: [await running.raw(GET % (path, header)) for header in (b"", auth)]
            for path in (b"/health", b"/v1/models", b"/metrics")
        }
    found = {path: [split(r)[0] for r in pair] for path, pair in raw.items()}
    assert found == {b"/health": [200, 200], b"/v1/models": [401, 200], b"/metrics": [401, 404]}
    listed = json.loads(split(raw[b"/v1/models"][1])[2])["data"]
    assert [model["id"] for model in listed] == ["n"]


async def test_a_key_opens_its_models_alone(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--'
    async with start_router([engine], models=("m", "n")) as running:
        ring = lock(running, key(models=["n"]))
        ask = running.post
        assert (await ask("/v1/completions", {"model": "n"}, **bearer()))[0] == 200
        status, _, body = await ask("/v1/completions", BODY, **bearer())
        assert (status, json.loads(body)["error"]["type"]) == (403, "PermissionDeniedError")
        twice = b'{"model":"n","model":"m"}'
        assert (await ask("/v1/completions", twice, **bearer()))[0] == 403
        assert (await ask("/v1/completions", b"{}", **bearer()))[0] == 403
        kind = "multipart/form-data; boundary=b"
        path = "/v1/audio/transcriptions"
        assert (await ask(path, form, Content_Type=kind, **bearer()))[0] == 403
        assert running_now(ring) == 0
    assert len(engine.seen) == 1


async def test_a_request_carries_its_keys_tenant_and_priority(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        running.router.keys = ring = Keyring(lambda: 0.0)
        ring.replace([(key(tenant="acme"), 2), (key(OTHER, "two"), 0)], 0.0)
        seen: list[tuple[str, int]] = []
        closed = running.router.closed

        def spy(exchange: Any) -> None:
            seen.append((exchange.request.tenant, exchange.request.priority))
            closed(exchange)

        running.router.closed = spy  # type: ignore[method-assign]
        await running.post("/v1/completions", BODY, **bearer())
        await running.post("/v1/completions", BODY, **bearer(OTHER))
    assert seen == [("acme", 2), ("two", 0)]


# --- how much -------------------------------------------------------------------------------------


async def test_requests_per_minute(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        lock(running, key(requests_per_minute=3), key(OTHER, "two"))
        answers = [await running.post("/v1/completions", BODY, **bearer()) for _ in range(5)]
        assert (await running.post("/v1/completions", BODY, **bearer(OTHER)))[0] == 200
    assert [status for status, _, _ in answers] == [200, 200, 200, 429, 429]
    assert 15 <= int(answers[3][1]["retry-after"]) <= 20
    assert json.loads(answers[3][2])["error"]["type"] == "RateLimitError"


async def test_tokens_per_minute_are_charged_ahead_and_settled(
    start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with start_router([engine]) as running:
        ring = lock(running, key(tokens_per_minute=250))
        (account,) = ring._accounts.values()
        assert account.tokens is not None
        levels = []
        for _ in range(3):
            await running.post("/v1/completions", BODY, **bearer())
            levels.append(250 - account.tokens.used(running.router.now()))
        status, headers, _ = await running.post("/v1/completions", BODY, **bearer())
    assert levels[0] == pytest.approx(250 - 120, abs=3)  # what the engine said, not the estimate
    assert levels[1] == pytest.approx(250 - 240, abs=6)
    assert status == 429
    assert 10 <= int(headers["retry-after"]) <= 40


async def test_what_an_engine_failed_to_serve_costs_no_tokens(
    start_engine: Any, start_router: Any
) -> None:
    async def broken(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", "500 Oops"))

    engine = await start_engine(broken)
    async with start_router([engine]) as running:
        ring = lock(running, key(tokens_per_minute=250))
        assert (await running.post("/v1/completions", BODY, **bearer()))[0] == 502
        (account,) = ring._accounts.values()
    assert account.tokens is not None
    assert (account.tokens.used(running.router.now()), account.running) == (0.0, 0)


async def test_a_client_that_leaves_pays_for_its_prompt(
    start_engine: Any, start_router: Any
) -> None:
    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    engine = await start_engine(never)
    async with start_router([engine]) as running:
        ring = lock(running, key(tokens_per_minute=250))
        (account,) = ring._accounts.values()
        assert account.tokens is not None
        body = json.dumps(BODY).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: r\r\nX-Api-Key: {SECRET}\r\n"
        await running.raw(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body, 0.2)
        await asyncio.sleep(0.05)
        assert account.running == 0
        assert account.tokens.used(running.router.now()) == pytest.approx(100, abs=3)


async def test_concurrent_requests_are_given_back_on_every_path(
    start_engine: Any, start_router: Any
) -> None:
    gate = asyncio.Event()
    mode = "slow"

    async def engine_does(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if mode == "slow":
            await gate.wait()
            writer.write(whole(USAGE))
        elif mode == "reset":
            writer.transport.abort()
        elif mode == "cut":
            writer.write(SSE_HEAD + chunk(event(i=1)))
            await writer.drain()
            writer.transport.abort()
        elif mode == "error":
            writer.write(whole(b"{}", "500 Oops"))
        else:
            writer.write(whole(b"{}", "400 Bad Request"))

    engines = [await start_engine(engine_does) for _ in range(2)]
    async with start_router(engines) as running:
        ring = lock(running, key(concurrent_requests=1))
        ask = running.post
        first = asyncio.ensure_future(ask("/v1/completions", BODY, **bearer()))
        while not running_now(ring):
            await asyncio.sleep(0.01)
        status, headers, _ = await ask("/v1/completions", BODY, **bearer())
        assert (status, headers["retry-after"]) == (429, "1")
        gate.set()
        assert (await first)[0] == 200
        for mode, expected in (("reset", 502), ("error", 502), ("refused", 400), ("cut", 200)):
            status, _, _ = await ask("/v1/completions", {**BODY, "stream": True}, **bearer())
            assert (mode, status, running_now(ring)) == (mode, expected, 0)
        assert (await ask("/v1/completions", b"{", **bearer()))[0] == 400
        assert (await ask("/v1/nothing", BODY, **bearer()))[0] == 404
        assert (await ask("/v1/completions", {"model": "q"}, **bearer()))[0] == 404
        assert running_now(ring) == 0
        running.router.director.pipeline.decide = None  # a policy that raises
        assert (await ask("/v1/completions", BODY, **bearer()))[0] == 500
        assert (running_now(ring), ring._grants) == (0, {})


@given(
    per_minute=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 30), st.floats(0, 500)), max_size=60),
)
def test_a_bucket_lets_in_no_more_than_its_rate(
    per_minute: int, steps: list[tuple[float, float]]
) -> None:
    """Over any time: what was let in ≤ a minute's worth + the rate × time + the last need, which
    may be more than a bucket holds."""
    bucket, now, used, largest = Bucket(per_minute, 0.0), 0.0, 0.0, 0.0
    for pause, need in steps:
        now += pause
        wait = bucket.wait_s(need, now)
        if wait == 0.0:
            bucket.take(need, now)
            used += need
            largest = max(largest, need)
        else:
            assert wait > 0.0
            assert bucket.wait_s(need, now) == wait  # looking changes nothing
    assert used <= per_minute + per_minute * now / 60.0 + largest + 1e-6 * (1 + used)


@given(per_minute=st.integers(1, 10_000), need=st.floats(0.1, 20_000), used=st.floats(0, 30_000))
def test_retry_after_is_when_it_would_be_let_in(per_minute: int, need: float, used: float) -> None:
    bucket = Bucket(per_minute, 0.0)
    bucket.take(used, 0.0)
    wait = bucket.wait_s(need, 0.0)
    assert bucket.wait_s(need, wait + 1e-6 * (1 + wait)) == 0.0


def test_another_file_changes_limits_and_keeps_what_is_used() -> None:
    ring = Keyring(lambda: 0.0)
    ring.replace([(key(requests_per_minute=10, concurrent_requests=1), 0)], 0.0)
    (before,) = ring._accounts.values()
    assert before.requests is not None
    before.requests.take(9.0, 0.0)
    before.running = 1
    ring.replace([(key("new", requests_per_minute=5), 1)], 0.0)  # the key itself was replaced
    (after,) = ring._accounts.values()
    assert after is before
    assert after.requests is not None
    assert after.requests.used(0.0) == pytest.approx(9.0)
    assert (after.running, after.concurrent) == (1, None)
    for secret, opens in (("new", True), (SECRET, False)):
        head = parse_head(f"GET / HTTP/1.1\r\nHost: r\r\nX-Api-Key: {secret}\r\n\r\n".encode())
        assert isinstance(ring.check(head, 120.0), Account) is opens
    ring.replace([], 0.0)
    assert not ring._accounts


# --- secrets --------------------------------------------------------------------------------------


async def test_a_key_is_in_no_log_line_decision_answer_or_error(
    start_engine: Any, start_router: Any
) -> None:
    async def odd(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"{}", "500 Oops") if len(engine.seen) % 2 else whole(USAGE))

    engine = await start_engine(odd)
    answers = []
    async with start_router([engine]) as running:
        lock(running, key(models=["m"], requests_per_minute=6))
        values = (f"Bearer {SECRET}", f"Basic {SECRET}", f"Bearer {SECRET}x")
        sent = [{"X-Api-Key": SECRET}, *({"Authorization": value} for value in values)]
        for headers in sent * 3:
            for body in (BODY, {"model": "other"}, b"{"):
                answers.append(await running.post("/v1/completions", body, **headers))
        raw = f"POST /v1/completions HTTP/1.1\r\nHost: r\r\nAuthorization: {SECRET}\x01\r\n\r\n"
        answers.append(await running.raw(raw.encode()))
        raw = f"GET /v1/models HTTP/1.1\r\nHost: r\r\nX-Api-Key: {SECRET}\r\nBad Name: x\r\n\r\n"
        answers.append(await running.raw(raw.encode()))
        running.router.intake.read = None  # a bug, with a traceback
        answers.append(await running.post("/v1/completions", BODY, X_Api_Key=SECRET))
        running.router.telemetry.flush()
        decisions = [repr(decision) for decision in running.router.director.ledger]
        page = running.router.metrics()
    log = running.log.getvalue()
    statuses = {a[0] if isinstance(a, tuple) else int(a[9:12]) for a in answers}
    assert statuses >= {200, 400, 401, 403, 429}
    assert log
    assert decisions
    for text in (log, *map(str, answers), *decisions, page.decode(), str(engine.seen)):
        assert SECRET not in text
        assert digest(SECRET) not in text
