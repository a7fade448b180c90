"""Canaries: what passes, what does not, and what is remembered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infctl import compose
from infctl.core.fleet import Endpoint
from infctl.router.canary import PROMPTS, Canaries, Fingerprints, Print
from infctl.router.upstream import Pool

from .conftest import Engine, Seen, whole

Say = Callable[[str], str]


def says(say: Say, *, chat: bool = False, status: str = "200 OK") -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = json.loads(seen.body)
        if chat and seen.target != "/v1/chat/completions":
            writer.write(whole(b"{}", "404 Not Found"))
            return
        text = say(body["messages"][0]["content"] if "messages" in body else body["prompt"])
        choice = {"message": {"content": text}} if chat else {"text": text}
        writer.write(whole(json.dumps({"choices": [choice]}).encode(), status))

    return script


def usual(prompt: str) -> str:
    return f" after {prompt}"


def one_off(prompt: str) -> str:
    return "something else" if prompt == PROMPTS[0] else usual(prompt)


def later_off(prompt: str) -> str:
    return usual(prompt)[:10] + "!"


class Verifier:
    def __init__(self, start: Any) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.canaries = Canaries(lambda kind, **fields: self.log.append((kind, fields)))
        self._start = start

    async def __call__(self, script: Any, *, anew: bool = False, **more: Any) -> str | None:
        engine: Engine = await self._start(script)
        fields = {"unit": "u0", "models": ("m",), "engine": "vllm", "revision": "r1"} | more
        endpoint = Endpoint(url=engine.url, **fields)
        pool = Pool(endpoint)
        try:
            kind = compose.engine(endpoint.engine)
            return await self.canaries.check(pool, endpoint, kind, anew=anew)
        finally:
            pool.close()


@pytest.fixture
def verify(start_engine: Any) -> Verifier:
    return Verifier(start_engine)


@pytest.mark.parametrize("say", [usual, one_off, later_off])
async def test_a_majority_that_agrees_in_its_first_tokens_passes(
    say: Say, verify: Verifier
) -> None:
    assert await verify(says(usual)) is None
    assert await verify(says(say)) is None


async def test_other_answers_fail_and_it_is_said_how_they_differ(verify: Verifier) -> None:
    assert await verify(says(usual)) is None
    problem = await verify(says(lambda prompt: "gibberish and more of it"))
    assert problem == (
        "3 of 3 canary answers differ from the first ones: 'gibberish and more of it' "
        f"instead of {usual(PROMPTS[0])[:40]!r}"
    )


async def test_other_revisions_and_units_of_none_are_not_compared(verify: Verifier) -> None:
    assert await verify(says(usual)) is None
    assert await verify(says(str.upper), revision="r2") is None
    assert await verify(says(usual), revision="") is None
    assert await verify(says(str.upper), revision="", unit="u1") is None
    assert await verify(says(str.upper), revision="") is not None


async def test_first_answers_that_two_others_contradict_are_outvoted(verify: Verifier) -> None:
    outvoted: list[str] = []
    verify.canaries.outvoted = outvoted.append
    assert await verify(says(str.upper), unit="bad") is None
    for _ in range(3):  # one alone cannot, however often it tries
        assert await verify(says(usual), unit="u1") is not None
    assert await verify(says(str.title), unit="u3") is not None
    assert outvoted == []
    assert await verify(says(usual), unit="u2") is None
    assert outvoted == ["bad"]
    assert await verify(says(usual), unit="u1") is None
    assert await verify(says(str.upper), unit="bad") is not None


async def test_what_a_second_endpoint_confirmed_is_never_outvoted(
    verify: Verifier, tmp_path: Path
) -> None:
    verify.canaries.fingerprints.keep(tmp_path / "file", 1.0)
    assert await verify(says(usual), unit="u0") is None
    assert await verify(says(usual), unit="u1") is None
    verify.canaries = Canaries(lambda *_, **__: None)  # the router restarts
    verify.canaries.fingerprints.keep(tmp_path / "file", 1.0)
    for name in ("u1", "u2", "u3", "u4"):
        assert await verify(says(str.upper), unit=name) is not None


@pytest.mark.parametrize(
    ("say", "problem"),
    [
        (lambda prompt: "", "most canary answers are empty"),
        (lambda prompt: " \n", "most canary answers are empty"),
        (lambda prompt: "!!!!!!!!", "every canary answer is '!!!!!!!!'"),
    ],
)
async def test_garbage_fails_even_the_first_time_and_when_an_operator_accepts(
    say: Say, problem: str, verify: Verifier
) -> None:
    assert await verify(says(say)) == problem
    assert await verify(says(say), anew=True) == problem
    assert await verify(says(usual)) is None


async def test_an_operator_may_accept_new_answers(verify: Verifier) -> None:
    assert await verify(says(usual)) is None
    assert await verify(says(str.upper), anew=True) is None
    assert await verify(says(str.upper)) is None
    assert await verify(says(usual)) is not None


async def test_chat_is_asked_where_there_are_no_completions(verify: Verifier) -> None:
    assert await verify(says(usual, chat=True)) is None
    assert await verify(says(str.upper, chat=True)) is not None


@pytest.mark.parametrize("status", ["400 Bad", "404 Not Found", "422 Odd", "501 No"])
async def test_an_engine_that_completes_nothing_passes_and_is_told_once(
    status: str, verify: Verifier
) -> None:
    for _ in range(2):
        assert await verify(says(usual, status=status)) is None
    assert verify.log == [("not_verified", {"model": "m", "note": "it completes no prompts"})]


async def test_one_that_completed_prompts_once_must_do_so_again(verify: Verifier) -> None:
    assert await verify(says(usual)) is None
    problem = "it completes no prompts any more"
    assert await verify(says(usual, status="400 Bad Request")) == problem
    assert await verify(says(usual, status="400 Bad Request"), anew=True) is None


async def test_errors_resets_and_nonsense_fail(verify: Verifier) -> None:
    async def reset(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def nonsense(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"<html>"))

    assert await verify(says(usual, status="500 Oops")) == "canaries failed: answered 500"
    assert str(await verify(reset)).startswith("canaries failed: connection lost")
    assert str(await verify(nonsense)).startswith("canaries failed: not an answer")


async def test_it_asks_greedily_and_little(start_engine: Any, verify: Verifier) -> None:
    bodies = []

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        bodies.append(json.loads(seen.body))
        await says(usual)(seen, writer)

    await verify(script)
    await verify(script, engine="openai", revision="r2")
    assert {body["prompt"] for body in bodies} == set(PROMPTS)
    assert all((b["max_tokens"], b["temperature"], b["seed"]) == (8, 0, 0) for b in bodies)
    assert [b.get("ignore_eos", False) for b in bodies] == [True] * 3 + [False] * 3


def test_fingerprints_outlive_the_router_but_not_the_run(tmp_path: Path) -> None:
    file = tmp_path / "fingerprints.json"
    first = Fingerprints()
    first.keep(file, 1.0)
    first.put("m|r|vllm", Print(("a", "b"), "u0"))
    assert file.stat().st_mode & 0o777 == 0o600
    again, later, damaged = Fingerprints(), Fingerprints(), Fingerprints()
    again.keep(file, 1.0)
    later.keep(file, 2.0)
    assert again.get("m|r|vllm") == Print(("a", "b"), "u0")
    assert later.get("m|r|vllm") is None
    file.write_bytes(b"{")
    damaged.keep(file, 1.0)
    assert damaged.get("m|r|vllm") is None


async def test_a_disk_that_takes_nothing_stops_no_endpoint(
    tmp_path: Path, verify: Verifier
) -> None:
    verify.canaries.fingerprints.keep(tmp_path / "nowhere" / "file", 1.0)
    assert await verify(says(usual)) is None
    assert [kind for kind, _ in verify.log] == ["fingerprint_not_kept"]
    assert await verify(says(str.upper)) is not None


def test_fingerprints_are_bounded() -> None:
    prints = Fingerprints()
    for number in range(1500):
        prints.put(str(number), Print(("a",), "u0"))
    assert prints.get("0") is None
    assert sum(prints.get(str(n)) is not None for n in range(1500)) == 1000
