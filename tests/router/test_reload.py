"""Another profile, keys and certificates while requests run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from infctl import compose
from infctl.cli.profile_checks import load as load_profile
from infctl.core.request import Request
from infctl.errors import InfctlError
from infctl.profile.keyfile import Key, digest, text
from infctl.profile.load import ProfileError
from infctl.router import reload as module
from infctl.router.discovery import Discovery
from infctl.router.reload import Loaded, Reloader

from .conftest import Running, Seen, whole

PROFILE = {
    "metadata": {"name": "t"},
    "models": [{"name": "m"}],
    "pools": [{"name": "p"}],
    "engine": {"type": "vllm"},
}
BODY = {"model": "m", "prompt": "x" * 4000}


async def slow(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.1)
    writer.write(whole(b"{}"))


class Case:
    """A router on a profile file."""

    def __init__(self, running: Running, file: Path) -> None:
        self.running = running
        self.file = file
        self.write()
        loaded = self.load()
        self.discovery = Discovery(running.router, {}, loaded.profile.routing.health)
        self.reloader = Reloader(running.router, self.discovery, loaded, self.load)
        self.reloader.servers = [running.server]

    def write(self, routing: Any = None, **more: Any) -> None:
        self.file.write_text(json.dumps(PROFILE | {"routing": routing or {}} | more))

    def load(self) -> Loaded:
        profile = load_profile(str(self.file))
        return Loaded(profile, compose.pipeline(profile), {})

    async def reload(self, routing: Any = None, **more: Any) -> Any:
        self.write(routing, **more)
        return await self.reloader.reload()

    def log(self) -> str:
        self.running.router.telemetry.flush()
        return self.running.log.getvalue()


@pytest.fixture
def case(start_router: Any, start_engine: Any, tmp_path: Path) -> Callable[[], Any]:
    @asynccontextmanager
    async def start() -> AsyncIterator[Case]:
        engine = await start_engine(slow)
        async with start_router([engine]) as running:
            yield Case(running, tmp_path / "profile.json")

    return start


async def test_everything_live_changes_and_a_request_in_flight_goes_on(case: Any) -> None:
    async with case() as it:
        running = it.running
        work = asyncio.ensure_future(running.post("/v1/completions", BODY))
        await asyncio.sleep(0.05)
        index, flights = running.router.director.index, list(running.router.director.flights)
        found = await it.reload(
            {
                "picker": "round-robin",
                "scorers": ["queue-depth"],
                "attempts_max": 7,
                "retry_share": 0.5,
                "extra_paths": ["/v2/own"],
                "limits": {"body_mib_max": 2, "connect_s": 1.0},
                "health": {"failures": 9},
            }
        )
        director = running.router.director
        assert director.pipeline.name == "round-robin"
        assert (director.settings.attempts_max, director.retries.share) == (7, 0.5)
        assert running.router.limits is running.server.limits
        assert running.server.limits.body_mib_max == 2
        assert director.index is index
        assert list(director.flights) == flights
        assert len(flights) == 1
        assert (await work)[0] == 200
        assert (await running.post("/v2/own", {"model": "m"}))[0] == 200
        assert len(index.match(_blocks(running), 8).nonzero()[0]) == 1
        assert found["kept"] == []
        assert "routing.limits.body_mib_max" in found["applied"]
        assert "routing.picker" in found["applied"]
        assert (await it.reload())["applied"]  # and back
        assert (await running.post("/v2/own", {"model": "m"}))[0] == 404
        assert '"event":"profile_reloaded"' in it.log()


def _blocks(running: Running) -> list[int]:
    from infctl.router.wire import parse_head

    head = parse_head(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\n\r\n")
    request: Request = running.router.intake.read(head, json.dumps(BODY).encode(), lambda: "m")[0]
    return request.blocks


async def test_what_cannot_change_is_named_and_keeps_its_value(case: Any) -> None:
    async with case() as it:
        tls = {"cert_file": "/none", "key_file": "/none"}
        found = await it.reload(
            {"drain_s": 7.0, "tls": tls},
            observability={"metrics_port": 1234},
            pools=[{"name": "p", "units": {"ready": 3}}],
            slo={"ttft_ms": 900.0},
        )
        profile = it.reloader.profile
    assert found["applied"] == ["routing.drain_s", "slo.ttft_ms"]
    assert found["kept"] == ["observability.metrics_port", "pools", "routing.tls"]
    assert (profile.observability.metrics_port, profile.routing.tls) == (None, None)
    assert profile.pools[0].units.ready == 1
    assert profile.routing.drain_s == 7.0


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        ({"limits": {"body_mib_max": "many"}}, "whole number"),
        ({"picker": "bset"}, "best"),
        ({"colour": 1}, "no key of a profile"),
        ({"keys_file": "/nowhere/keys.yaml"}, "cannot be read"),
        ({"engine_tls": {"ca_file": "/nowhere/ca.pem"}}, "No such file"),
    ],
)
async def test_a_bad_profile_is_refused_whole(routing: Any, words: str, case: Any) -> None:
    async with case() as it:
        before = it.reloader.profile, it.running.router.director.pipeline, it.running.server.limits
        it.write({"attempts_max": 9} | routing)
        status, body = await it.reloader.answer()
        assert (status in (400, 503), words in json.dumps(body)) == (True, True)
        router = it.running.router
        assert (it.reloader.profile, router.director.pipeline, it.running.server.limits) == before
        assert router.director.settings.attempts_max == 3
        assert router.keys is None
        assert '"event":"profile_refused"' in it.log()
        assert (await it.running.post("/v1/completions", BODY))[0] == 200


async def test_the_message_is_the_one_validate_gives(case: Any) -> None:
    async with case() as it:
        it.write({"limits": {"idle_s": -1.0, "colour": 1}})
        _, body = await it.reloader.answer()
        with pytest.raises(ProfileError) as caught:
            load_profile(str(it.file))
    assert body["error"]["message"] == caught.value.message
    assert body["error"]["lines"] == list(caught.value.lines)
    assert len(body["error"]["lines"]) == 2


async def test_a_profile_that_is_no_file_any_more_and_a_plugin_that_raises(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with case() as it:
        it.file.unlink()
        assert (await it.reloader.answer())[0] == 400
        monkeypatch.setattr(it.reloader, "_load", lambda: 1 / 0)
        status, body = await it.reloader.answer()
        assert (status, "ZeroDivisionError" in body["error"]["message"]) == (500, True)
        assert it.reloader.profile.metadata.name == "t"


async def test_reloads_at_once_come_one_after_another(case: Any) -> None:
    async with case() as it:
        it.write({"attempts_max": 5})
        answers = await asyncio.gather(*(it.reloader.answer() for _ in range(5)))
    assert [status for status, _ in answers] == [200] * 5
    assert sum(bool(body["applied"]) for _, body in answers) == 1


async def test_no_request_is_lost_to_reloads(case: Any) -> None:
    async with case() as it:
        work = [asyncio.ensure_future(it.running.post("/v1/completions", BODY)) for _ in range(60)]
        for index in range(6):
            picker = ("best", "round-robin", "power-of-two")[index % 3]
            await it.reload({"picker": picker, "health": {"failures": index + 1}})
            work += [
                asyncio.ensure_future(it.running.post("/v1/completions", BODY)) for _ in range(10)
            ]
        answers = await asyncio.gather(*work)
    assert {status for status, _, _ in answers} == {200}


def keys(folder: Path, *secrets: str, mode: int = 0o600) -> str:
    made = [Key(name=f"k{i}", sha256=digest(secret)) for i, secret in enumerate(secrets)]
    file = folder / "keys.new"
    file.write_text(text(made))
    file.chmod(mode)
    file.replace(folder / "keys.yaml")
    return str(folder / "keys.yaml")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(3):
        while not condition():
            await asyncio.sleep(0.01)


async def test_keys_come_change_and_go_with_their_file(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    async with case() as it:
        ask = it.running.post

        async def status(key: str) -> int:
            return int((await ask("/v1/completions", BODY, X_Api_Key=key))[0])

        assert await status("") == 200
        await it.reload({"keys_file": keys(tmp_path, "a")})
        assert (await status("a"), await status("b")) == (200, 401)
        follow = asyncio.ensure_future(it.reloader.follow_files())
        await asyncio.sleep(0.05)
        keys(tmp_path, "b")
        await until(lambda: "credentials_reloaded" in it.log())
        assert (await status("a"), await status("b")) == (401, 200)
        keys(tmp_path, "c", mode=0o644)  # refused: the old ones stay
        await until(lambda: "credentials_refused" in it.log())
        assert (await status("b"), await status("c")) == (200, 401)
        Path(tmp_path / "keys.yaml").unlink()
        await until(lambda: it.log().count("credentials_refused") == 2)
        assert await status("b") == 200
        follow.cancel()
        await it.reload()
        assert await status("") == 200


async def test_an_error_of_any_kind_keeps_what_is_in_force(case: Any) -> None:
    async with case() as it:
        with pytest.raises(InfctlError):
            await it.reload({"filters": ["nothing"]})
        assert it.reloader.profile.routing.filters == ["ready", "role", "model"]
