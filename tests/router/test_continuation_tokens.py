"""Continuation with real tokenizers: every place to die in, characters split over tokens, events
and reads, and greedy text that must come out as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .conftest import SSE_HEAD, Seen, chunk, whole
from .test_continuation import COMPLETION, DONE, event, said

CORPUS = [
    "引擎停了,另一个引擎接着说下去。推理服务的路由器不能丢掉任何一个请求。",
    "When an engine dies in the middle of an answer, another one goes on from there.",
    "缓存命中率越高,首个令牌的时间就越短。The cache next door is warm, naïve routing is not.",
]
ANSWER = "路由器 goes on: 引擎停了, naïve 🚀 routing 不会丢掉 answer。"
PROMPT = "请 explain 路由"


def bpe() -> Tokenizer:
    """A byte-level BPE tokenizer, trained on both languages."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def byte_level() -> Tokenizer:
    """One token a byte."""
    made = bpe()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.model = models.BPE({c: i for i, c in enumerate(alphabet)}, [])
    return made


def odd_tokens(tokenizer: Tokenizer) -> list[int]:
    """Tokens of ANSWER as a model may choose them: not the ones its tokenizer would."""
    drawn, ids = random.Random(7), []
    text = ANSWER
    while text:
        size = drawn.randint(1, 5)
        ids += tokenizer.encode(text[:size]).ids
        text = text[size:]
    assert tokenizer.decode(ids) == ANSWER
    return ids


class Model:
    """Greedy decoding: what comes next depends on all tokens before it."""

    def __init__(self, tokenizer: Tokenizer, tells: bool) -> None:
        self.tokenizer = tokenizer
        self.tells = tells
        self.ids = odd_tokens(tokenizer)
        self.prompt_ids = tokenizer.encode(PROMPT).ids

    def rest(self, prompt: Any) -> list[int]:
        """The tokens that follow a prompt; a wrong context gives a wrong answer."""
        if isinstance(prompt, list):
            known = prompt[len(self.prompt_ids) :]
            right = prompt == self.prompt_ids + self.ids[: len(known)]
            return self.ids[len(known) :] if right else self.tokenizer.encode("wrong").ids
        text = prompt.removeprefix(PROMPT)
        if not text:
            return self.ids
        right = ANSWER.startswith(text)
        return self.tokenizer.encode(ANSWER[len(text) :] if right else f"wrong: {text}").ids

    def events(self, ids: list[int], bunches: random.Random) -> Iterator[tuple[str, list[int]]]:
        """Text and tokens of each event; half a character is held back, as engines do."""
        out, at = "", 0
        while at < len(ids):
            size = bunches.randint(1, 3)
            text = self.tokenizer.decode(ids[: at + size])
            text = text[: len(text) - text.endswith("\ufffd")] if at + size < len(ids) else text
            text = text.rstrip("\ufffd")
            yield text[len(out) :], ids[at : at + size]
            out, at = text, at + size


def engine(model: Model, dies_after: int | None, seed: int) -> Any:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(seen.body)
        if seen.target == "/detokenize":
            text = model.tokenizer.decode(asked["tokens"])
            writer.write(whole(json.dumps({"prompt": text}).encode()))
            return
        tells = model.tells and asked.get("return_token_ids")
        ids = model.rest(asked["prompt"])
        raw, drawn = SSE_HEAD, random.Random(seed)
        for number, (text, some) in enumerate(model.events(ids, drawn)):
            if number == dies_after:
                break
            choice: dict[str, Any] = {"text": text}
            if tells:
                told = None if number else model.prompt_ids
                choice |= {"token_ids": some, "prompt_token_ids": told}
            raw += chunk(event(choice))
        else:
            writer.write(raw + chunk(event({"text": "", "finish_reason": "stop"})) + DONE)
            return
        for at in range(0, len(raw), 97):  # characters are split over reads, too
            writer.write(raw[at : at + 97])
            await writer.drain()
        await asyncio.sleep(0.01)
        writer.transport.abort()

    return script


@pytest.mark.parametrize("tells", [True, False], ids=["ids", "text"])
@pytest.mark.parametrize("kind", [byte_level, bpe])
async def test_it_makes_no_difference_where_an_engine_dies(
    start_engine: Any, start_router: Any, kind: Any, tells: bool
) -> None:
    model = Model(kind(), tells)
    places = len(list(model.events(model.ids, random.Random(3))))
    assert places > 10
    continued = 0
    for place in range(1, places):
        engines = [
            await start_engine(engine(model, place, 3)),
            await start_engine(engine(model, None, 4)),
        ]
        async with start_router(engines, {"picker": "round-robin"}, kind="vllm") as running:
            asked = COMPLETION | {"prompt": PROMPT, "max_tokens": 500}
            _, _, answer = await running.post("/v1/completions", asked)
            continued += running.router.telemetry.continued
        assert said(answer)[0] == ANSWER, place
        second = [json.loads(s.body) for s in engines[1].seen if s.target != "/detokenize"]
        assert second[0]["prompt"] != PROMPT or not tells or place < 3
    assert continued > places // 2
