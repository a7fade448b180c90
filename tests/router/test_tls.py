"""TLS to clients and to engines: what is accepted, what is refused, what survives a new
certificate."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from infctl.core.fleet import Endpoint, State
from infctl.errors import InputError
from infctl.profile.model import EngineTls, Tls
from infctl.router.tls import AcceptingListener, engine_context, server_context

from .certificates import Authority, Pair
from .conftest import SSE_HEAD, Engine, Running, Seen, chunk, event, split, undo_chunks, whole

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.")

POST = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n"

BRIEF = {"flow": {"queue_s": 0.1}}  # how long a request waits for an endpoint that may come back


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The router runs on uvloop, whose TLS is its own; the other one shows what is ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        name = request.param
        return uvloop.EventLoopPolicy() if name == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b'{"got": %d}' % len(seen.body)))


@asynccontextmanager
async def secure(running: Running, pair: Pair) -> AsyncIterator[AcceptingListener]:
    """The router, listening with TLS too; `running.port` becomes that port."""
    sock = socket.create_server(("127.0.0.1", 0))
    running.port = sock.getsockname()[1]
    tls = Tls(cert_file=pair.cert_file, key_file=pair.key_file)
    listener = AcceptingListener(sock, running.server, server_context(tls))
    try:
        yield listener
    finally:
        listener.close()


async def connect(
    running: Running, authority: Authority, **more: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", running.port, ssl=authority.trust(), limit=1 << 22, **more
    )


def shown(writer: asyncio.StreamWriter) -> str:
    """The common name of the certificate a server showed."""
    subject = writer.get_extra_info("peercert")["subject"]
    return str(dict(pair for part in subject for pair in part)["commonName"])


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> Any:
    writer.write(POST % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    status, headers, _ = split(head)
    return status, await reader.readexactly(int(headers["content-length"]))


async def test_large_bodies_and_streams_pass_as_in_clear(
    authority: Authority, start_engine: Any, start_router: Any
) -> None:
    events = [chunk(event(i=i, text="x" * 500)) for i in range(2000)]

    async def stream(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if b'"stream":true' not in seen.body:
            await echo(seen, writer)
            return
        writer.write(SSE_HEAD + b"".join(events) + b"0\r\n\r\n")

    engine = await start_engine(stream)
    async with start_router([engine]) as running, secure(running, authority.issue("router")):
        reader, writer = await connect(running, authority)
        body = json.dumps({"model": "m", "prompt": "x" * 5_000_000}).encode()
        assert await exchange(reader, writer, body) == (200, b'{"got": %d}' % len(body))
        assert engine.seen[0].body == body
        small = b'{"model":"m","stream":true}'
        writer.write(POST % len(small) + small)
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)  # a client that is slow to read holds its engine up, and no more
        (connection,) = running.server.connections
        assert connection.transport.get_write_buffer_size() < 1 << 20
        answer = await reader.readuntil(b"0\r\n\r\n")
        assert undo_chunks(answer) == b"".join(undo_chunks(e + b"0\r\n\r\n") for e in events)
        writer.close()


async def test_a_new_certificate_is_shown_to_new_connections_and_drops_none(
    authority: Authority, start_engine: Any, start_router: Any
) -> None:
    engine = await start_engine(echo)
    async with (
        start_router([engine]) as running,
        secure(running, authority.issue("old")) as listener,
    ):
        old = await connect(running, authority)
        pair = authority.issue("new")
        listener.context = server_context(Tls(cert_file=pair.cert_file, key_file=pair.key_file))
        new = await connect(running, authority)
        assert (shown(old[1]), shown(new[1])) == ("old", "new")
        for reader, writer in (old, new):
            assert (await exchange(reader, writer, b'{"model":"m"}'))[0] == 200
            writer.close()


async def test_versions_before_1_2_are_refused(authority: Authority, start_router: Any) -> None:
    old = authority.trust()
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with start_router([]) as running, secure(running, authority.issue("router")):
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", running.port, ssl=old)
        assert not running.server.connections


async def test_clients_that_never_shake_hands_are_bounded_in_number_and_time(
    authority: Authority, start_router: Any
) -> None:
    limits = {"connections_max": 3, "header_s": 0.3}
    async with (
        start_router([], {"limits": limits}) as running,
        secure(running, authority.issue("router")),
    ):
        idle = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(5)]
        turned_away = [await reader.read() for reader, _ in idle[3:]]
        assert turned_away == [b"", b""]
        assert running.router.telemetry.refused[503] == 2
        async with asyncio.timeout(3):
            assert [await reader.read() for reader, _ in idle[:3]] == [b""] * 3
        reader, writer = await connect(running, authority)
        writer.write(b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
        for _, each in [*idle, (reader, writer)]:
            each.close()


async def test_plain_http_and_garbage_end_at_the_handshake(
    authority: Authority, start_router: Any
) -> None:
    async with start_router([]) as running, secure(running, authority.issue("router")):
        for garbage in (
            b"GET /health HTTP/1.1\r\nHost: r\r\n\r\n",
            bytes(100),
            b"\x16\x03\x01\xff",
        ):
            raw = await running.raw(garbage, wait_s=0.3)
            assert b"HTTP" not in raw
        assert not running.router.exchanges
        _, writer = await connect(running, authority)
        writer.close()


@asynccontextmanager
async def secure_engine(
    authority: Authority, name: str, ask_client: bool = False, script: Any = echo
) -> AsyncIterator[Engine]:
    pair = authority.issue(name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    if ask_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca_file)
    engine = Engine(script)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ssl.SSLError):
            await engine.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    engine.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()


async def ask(running: Running, tls: EngineTls | None, engine: Engine, body: Any = None) -> Any:
    running.router.engine_trust.replace(engine_context(tls) if tls else None)
    running.router.join(Endpoint(unit="u", url=engine.url, models=("m",)), State.READY)
    return await running.post("/v1/completions", body or {"model": "m"})


async def test_an_engine_is_met_by_its_certificate_and_sees_the_routers(
    authority: Authority, start_router: Any
) -> None:
    own = authority.issue("router-client")
    known = EngineTls(ca_file=authority.ca_file, cert_file=own.cert_file, key_file=own.key_file)
    async with secure_engine(authority, "engine", ask_client=True) as engine:
        async with start_router([]) as running:
            assert (await ask(running, known, engine))[0] == 200
            big = {"model": "m", "prompt": "x" * 3_000_000}
            for _ in range(3):
                status, _, body = await running.post("/v1/completions", big)
                assert (status, json.loads(body)["got"]) == (200, len(json.dumps(big)))
        async with start_router([], BRIEF) as running:
            assert (await ask(running, EngineTls(ca_file=authority.ca_file), engine))[0] >= 500
    assert len(engine.seen) == 4


async def test_an_engine_that_cannot_be_trusted_gets_no_request(
    authority: Authority, start_router: Any, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with secure_engine(authority, "engine") as engine, start_router([], BRIEF) as running:
        for tls in (None, EngineTls(ca_file=stranger.ca_file)):
            assert (await ask(running, tls, engine))[0] >= 500
    assert not engine.seen


async def test_a_certificate_for_another_address_is_not_this_engines(
    authority: Authority, start_router: Any
) -> None:
    pair = authority.issue("elsewhere", "127.0.0.2")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    engine = Engine(echo)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=context)
    engine.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with start_router([], BRIEF) as running:
        assert (await ask(running, EngineTls(ca_file=authority.ca_file), engine))[0] >= 500
    assert not engine.seen
    server.close()


async def test_an_event_stream_from_a_secure_engine(
    authority: Authority, start_router: Any
) -> None:
    async def stream(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for i in range(300):
            writer.write(chunk(event(i=i)))
            if i % 50 == 0:
                await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")

    async with (
        secure_engine(authority, "engine", script=stream) as engine,
        start_router([]) as running,
    ):
        tls = EngineTls(ca_file=authority.ca_file)
        status, _, body = await ask(running, tls, engine, {"model": "m", "stream": True})
    assert (status, body) == (200, b"".join(event(i=i) for i in range(300)))


def test_what_cannot_be_used_is_told_and_where(authority: Authority, tmp_path: Path) -> None:
    one, two = authority.issue("one"), authority.issue("two")
    junk = tmp_path / "junk"
    junk.write_text("nothing of the kind")
    cases = [
        (one.cert_file, two.key_file, "key values mismatch"),
        (str(junk), one.key_file, "cannot be used"),
        (one.cert_file, str(junk), "cannot be used"),
        (str(tmp_path / "none"), one.key_file, "cannot be read"),
    ]
    for cert_file, key_file, words in cases:
        with pytest.raises(InputError, match=words):
            server_context(Tls(cert_file=cert_file, key_file=key_file))
    for ca_file in (str(junk), str(tmp_path / "none")):
        with pytest.raises(InputError, match="CA certificates"):
            engine_context(EngineTls(ca_file=ca_file))


def test_an_encrypted_key_is_refused_without_asking_for_its_password(
    authority: Authority, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization as form

    pair = authority.issue("locked")
    key = form.load_pem_private_key(Path(pair.key_file).read_bytes(), None)
    locked = form.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, locked)
    (tmp_path / "locked.key").write_bytes(pem)
    with pytest.raises(InputError, match="cannot be used"):
        server_context(Tls(cert_file=pair.cert_file, key_file=str(tmp_path / "locked.key")))
