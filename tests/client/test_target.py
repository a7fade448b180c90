import pytest

from infctl.client.http import Pool, Target
from infctl.client.target import Facts, inspect
from infctl.errors import TargetError
from infctl.runs.spec import RunSpec


async def ask(server, **values: object) -> Facts:
    pool = Pool(Target(server.url, {}), 2)
    try:
        return await inspect(pool, RunSpec(url=server.url, **values))  # type: ignore[arg-type]
    finally:
        pool.close()


async def test_model_context_and_bytes_per_token_are_measured(server) -> None:
    server.bytes_per_token = 2
    assert await ask(server) == Facts("tiny", 32_768, 2.0)
    probe = server.bodies[0]
    assert (len(probe["prompt"]), probe["max_tokens"]) == (512, 1)
    await ask(server)
    assert server.bodies[1]["prompt"] != probe["prompt"], "a probe must not hit a cache"


async def test_a_given_ratio_needs_no_probe(server) -> None:
    server.context_tokens = None
    assert await ask(server, bytes_per_token=3.5) == Facts("tiny", None, 3.5)
    assert server.bodies == []


async def test_a_model_it_does_not_serve(server) -> None:
    with pytest.raises(TargetError, match="no model 'big'") as caught:
        await ask(server, model="big")
    assert "tiny" in (caught.value.hint or "")


async def test_a_server_that_is_not_ready(server) -> None:
    server.models_status = 503
    with pytest.raises(TargetError, match="503"):
        await ask(server)
    assert (await ask(server, model="tiny")).context_tokens is None


async def test_a_server_that_refuses_the_probe(server) -> None:
    server.status = 400
    with pytest.raises(TargetError, match="no room"):
        await ask(server)


async def test_nobody_there() -> None:
    pool = Pool(Target("http://127.0.0.1:1", {}), 1)
    with pytest.raises(TargetError, match="cannot connect"):
        await inspect(pool, RunSpec(url="http://127.0.0.1:1"))
