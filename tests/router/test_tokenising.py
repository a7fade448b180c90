"""Prompts tokenised before the Director hears of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from infctl.profile.model import Profile
from infctl.router import tokenising
from infctl.router.tokenising import Tokenising
from infctl.router.tokenizer import ModelTokenizer
from infctl.router.wire import parse_head

from .conftest import Seen, whole
from .tokenizers_made import CORPUS, folder, llama3

LONG = " ".join(CORPUS * 12)
COMPLETION = {"model": "m", "prompt": LONG}
HEAD = b"POST /v1/explain HTTP/1.1\r\nhost: r\r\n\r\n"


class Slow:
    """A tokenizer whose every call waits to be let go."""

    def __init__(self, inner: ModelTokenizer) -> None:
        self.inner = inner
        self.gate = threading.Semaphore(0)
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, texts: list[str]) -> list[bytes]:
        self.gate.acquire(timeout=10)
        self.calls.append(sum(map(len, texts)))
        return self.inner.encode(texts)


@pytest.fixture
def tokenizer(tmp_path: Path) -> ModelTokenizer:
    return ModelTokenizer(folder(tmp_path, llama3()))


@pytest.fixture
def start(start_router: Any, start_engine: Any) -> Any:
    """A router that tokenises before two engines, which report how many tokens they are told."""

    @asynccontextmanager
    async def begin(tokenizer: Any, told: int = 0, **options: Any) -> AsyncIterator[Any]:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            usage = {"prompt_tokens": told, "completion_tokens": 1}
            writer.write(whole(json.dumps({"usage": usage}).encode()))

        engines = [await start_engine(answer) for _ in range(2)]
        async with start_router(engines, {"scorers": ["prefix-affinity"]}) as running:
            made = Tokenising(running.router, {"m": tokenizer}, **options)
            running.router.tokenising = made
            try:
                yield running
            finally:
                if isinstance(tokenizer, Slow):
                    tokenizer.gate.release(1000)
                made.close()

    return begin


def results(running: Any) -> dict[str, int]:
    return {k: n for k, n in running.router.tokenising.stats.results.items() if n}


def last(running: Any) -> Any:
    return next(iter(running.router.director.ledger))


async def until(met: Any) -> None:
    async with asyncio.timeout(5):
        while not met():
            await asyncio.sleep(0.005)


async def test_the_decision_knows_every_token_and_the_tail_alone_is_new(
    start: Any, tokenizer: Any
) -> None:
    ids = llama3().encode(LONG).ids
    async with start(tokenizer, told=len(ids)) as running:
        stats = running.router.tokenising.stats
        assert (await running.post("/v1/completions", COMPLETION))[0] == 200
        assert last(running).prompt_tokens == len(ids)
        assert last(running).expected_cached_tokens == 0
        first = stats.encoded_tokens
        assert first == len(ids) - 1  # the one before the prompt is known
        longer = COMPLETION | {"prompt": LONG + " And then some more of it."}
        assert (await running.post("/v1/completions", longer))[0] == 200
        # Whole blocks of 64, 256 and 1,024 tokens.
        assert len(ids) * 0.6 < last(running).expected_cached_tokens <= len(ids)
        assert stats.encoded_tokens - first < 600
        assert stats.known_tokens > first * 0.8
        assert results(running) == {"exact": 2}
        assert (stats.checked, stats.error_tokens) == (2, last(running).prompt_tokens - len(ids))
        text = running.router.metrics().decode()
    assert 'infctl_tokenised_prompts_total{result="exact"} 2.0' in text
    assert "infctl_tokenising_seconds_count 2.0" in text


async def test_how_json_is_written_makes_no_difference(start: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "Yes, 好。"}]
    chat = {"model": "m", "messages": messages}
    async with start(tokenizer) as running:
        await running.post("/v1/chat/completions", json.dumps(chat).encode())
        where = last(running).choice.slot
        other = json.dumps(chat, indent=1, ensure_ascii=False).encode()
        await running.post("/v1/chat/completions", other)
        decision = last(running)
        assert results(running) == {"exact": 2}
    assert decision.choice.slot == where
    assert decision.expected_cached_tokens > decision.prompt_tokens * 0.6
    text = tokenizer.template.render(messages, None, {"add_generation_prompt": True})
    assert decision.prompt_tokens == len(llama3().encode(text, add_special_tokens=False).ids)


async def test_token_ids_are_taken_as_they_are(start: Any, tokenizer: Any) -> None:
    async with start(tokenizer) as running:
        body = {"model": "m", "prompt": list(range(1, 401))}
        await running.post("/v1/completions", body)
        assert last(running).prompt_tokens == 400
        assert results(running) == {"exact": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": [LONG, LONG]}),
        ("completions", {"prompt": [-1] * 300}),
        ("completions", {"prompt": LONG, "truncate_prompt_tokens": 5}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url",
          "image_url": {"url": "data:image/png;base64," + "A" * 400}}]}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}],
          "chat_template": "{{ 1 }}"}),
        ("chat/completions", {"messages": [{"content": LONG}]}),
    ],
)  # fmt: skip
async def test_what_is_not_certain_goes_by_its_text(
    path: str, body: dict[str, Any], start: Any, tokenizer: Any
) -> None:
    async with start(tokenizer) as running:
        assert (await running.post(f"/v1/{path}", {"model": "m"} | body))[0] == 200
        assert results(running) == {"unusable": 1}
        assert len(running.router.director.index) > 0


async def test_other_paths_and_models_are_none_of_its_business(start: Any, tokenizer: Any) -> None:
    async with start(tokenizer) as running:
        assert (await running.post("/v1/embeddings", {"model": "m", "input": LONG}))[0] == 200
        assert (await running.post("/v1/completions", {"model": "x", "prompt": LONG}))[0] == 404
        assert (await running.post("/v1/completions", {"model": "m", "prompt": ""}))[0] == 200
        assert results(running) == {}


async def test_at_the_deadline_text_serves(start: Any, tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    async with start(slow) as running:
        router = running.router
        answer = asyncio.create_task(running.post("/v1/completions", COMPLETION))
        await until(lambda: results(running))
        assert results(running) == {"late": 1}
        assert (await answer)[0] == 200  # answered while nothing was tokenised
        slow.gate.release(1000)
        await until(lambda: router.tokenising._working == 0)
        # The request had ended by then; the pieces are known all the same.
        await running.post("/v1/completions", COMPLETION)
        assert results(running) == {"late": 1, "exact": 1}


async def test_what_is_known_of_the_beginning_serves(start: Any, tokenizer: Any) -> None:
    slow = Slow(tokenizer)
    async with start(slow) as running:
        slow.gate.release(1)
        short = COMPLETION | {"prompt": LONG[:3500]}
        await running.post("/v1/completions", short)
        assert results(running) == {"exact": 1}
        where = last(running).choice.slot
        answer = await running.post("/v1/completions", COMPLETION)
        assert answer[0] == 200
        assert results(running) == {"exact": 1, "partial": 1}
        assert last(running).choice.slot == where
        assert last(running).expected_cached_tokens > 500


async def test_a_late_result_is_told_while_the_request_runs(
    start_router: Any, start_engine: Any, tokenizer: Any
) -> None:
    go_on = asyncio.Event()

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.write(whole(b"{}"))

    slow = Slow(tokenizer)
    engine = await start_engine(answer)
    async with start_router([engine]) as running:
        router = running.router
        router.tokenising = Tokenising(router, {"m": slow})
        task = asyncio.create_task(running.post("/v1/completions", COMPLETION))
        await until(lambda: len(router.director.flights))
        before = len(router.director.index)
        slow.gate.release(1000)
        await until(lambda: router.tokenising._working == 0)
        assert len(router.director.index) > before
        (flight,) = router.director.flights
        assert flight.request.token_blocks
        assert flight.request.tokens == len(llama3().encode(LONG).ids)
        go_on.set()
        assert (await task)[0] == 200
        router.tokenising.close()


async def test_beyond_the_cap_prompts_go_by_their_text(start: Any, tokenizer: Any) -> None:
    async with start(tokenizer, tokens_per_s=100.0) as running:
        await running.post("/v1/completions", COMPLETION)
        other = COMPLETION | {"prompt": "Z" + LONG}
        await running.post("/v1/completions", other)
        await running.post("/v1/completions", COMPLETION)  # known: costs nothing
        assert results(running) == {"exact": 2, "capped": 1}


async def test_a_long_prompt_does_not_hold_up_a_short_one(
    start: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenising, "_DEADLINE_S", 5.0)
    monkeypatch.setattr(tokenising, "_DEADLINE_S_MAX", 5.0)
    monkeypatch.setattr(tokenising.os, "cpu_count", lambda: 1)
    slow = Slow(tokenizer)
    async with start(slow) as running:
        huge = COMPLETION | {"prompt": " ".join(f"{n} {LONG}" for n in range(15))}
        first = asyncio.create_task(running.post("/v1/completions", huge))
        await until(lambda: running.router.tokenising._working == 1)
        short = COMPLETION | {"prompt": "short " + LONG[:400]}
        second = asyncio.create_task(running.post("/v1/completions", short))
        await until(lambda: running.router.tokenising._working == 2)
        slow.gate.release(2)
        assert (await second)[0] == 200
        assert not first.done()
        slow.gate.release(1000)
        assert (await first)[0] == 200
        assert results(running) == {"exact": 2}
    assert slow.calls[1] < 500 < slow.calls[0] < 20_000


async def test_too_many_wait_already(
    start: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenising, "_WAITING_MAX", 0)
    async with start(tokenizer) as running:
        assert (await running.post("/v1/completions", COMPLETION))[0] == 200
        assert results(running) == {"late": 1}


async def test_a_client_that_leaves_meanwhile_is_sent_nowhere(
    start: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenising, "_DEADLINE_S", 5.0)
    monkeypatch.setattr(tokenising, "_DEADLINE_S_MAX", 5.0)
    slow = Slow(tokenizer)
    async with start(slow) as running:
        body = json.dumps(COMPLETION).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: running.router.tokenising._working == 1)
        writer.transport.abort()
        await until(lambda: not running.router.exchanges)
        slow.gate.release(1000)
        await until(lambda: running.router.tokenising._working == 0)
        assert len(running.router.director.ledger) == 0
        assert not running.router.director.flights._flights


async def test_nothing_is_made_where_no_model_names_a_tokenizer(tmp_path: Path) -> None:
    profile: dict[str, Any] = {
        "metadata": {"name": "t"}, "models": [{"name": "m", "aliases": ["a"]}],
        "pools": [{"name": "p"}],
    }  # fmt: skip
    router: Any = None
    assert tokenising.start(Profile.model_validate(profile), router) is None
    profile["models"][0]["tokenizer"] = folder(tmp_path, llama3())
    made = tokenising.start(Profile.model_validate(profile), router)
    assert made is not None
    assert set(made._tokenizers) == {"m", "a"}
    made.close()


async def test_an_explanation_counts_as_decisions_do(start: Any, tokenizer: Any) -> None:
    async with start(tokenizer) as running:
        await running.post("/v1/completions", COMPLETION)
        tokens, where = last(running).prompt_tokens, last(running).choice.slot
        router = running.router
        body = json.dumps(COMPLETION, indent=1).encode()
        request, _, _ = router.intake.read(parse_head(HEAD), body, router.default_model)
        await asyncio.to_thread(router.tokenising.whole, request, body)
        rows, best = router.director.explain(request, router.now())
    assert request.prompt_tokens == tokens
    assert best == where
    assert rows[0].cached_tokens > tokens * 0.6
