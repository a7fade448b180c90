"""The endpoints, over a real socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from infctl.replica import ReplicaOptions
from infctl.timing import Decode

if TYPE_CHECKING:
    from .conftest import Emulator, Start

SLOW: dict[str, Any] = {"decode": Decode(50.0, 0.0, 0.0, 0.0)}


def slowed(emulator: Emulator, **changes: Any) -> Any:
    """Its timing model with slow decoding."""
    return msgspec.structs.replace(emulator.engine.options.timing, **(SLOW | changes))


async def test_a_completion(emulator: Emulator) -> None:
    answer = await emulator.complete(model="m", prompt="x" * 41, max_tokens=7, ignore_eos=True)
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert len(choice["text"]) == 7 * 4
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_repeated_prompt_is_cached_in_whole_blocks(emulator: Emulator) -> None:
    prompt = "abcd" * 10
    for cached in (0, 8):
        answer = await emulator.complete(prompt=prompt, max_tokens=1)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    salted = await emulator.complete(prompt=prompt, max_tokens=1, cache_salt="s")
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stream_has_one_event_a_token(emulator: Emulator) -> None:
    body = {"prompt": "hello", "max_tokens": 30, "ignore_eos": True}
    chunks = await emulator.chunks("/v1/completions", **body)
    assert len(chunks) == 30
    assert {len(c["choices"][0]["text"]) for c in chunks} == {4}
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * 29 + ["length"]
    whole = await emulator.complete(**body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]


async def test_token_ids_are_the_texts_and_go_on_as_a_prompt(emulator: Emulator) -> None:
    body = {"prompt": "hello", "max_tokens": 12, "ignore_eos": True}
    text = (await emulator.complete(**body))["choices"][0]["text"]
    chunks = await emulator.chunks("/v1/completions", return_token_ids=True, **body)
    choices = [c["choices"][0] for c in chunks]
    assert "".join(c["text"] for c in choices) == text
    assert [c["prompt_token_ids"] is not None for c in choices] == [True] + [False] * 11
    ids = [i for c in choices for i in c["token_ids"]]
    answer = await emulator.client.post("/detokenize", json={"tokens": ids})
    assert answer.json() == {"prompt": text}
    rest = body | {"prompt": choices[0]["prompt_token_ids"] + ids[:5], "max_tokens": 7}
    assert (await emulator.complete(**rest))["choices"][0]["text"] == text[20:]


async def test_usage_comes_in_an_event_of_its_own(emulator: Emulator) -> None:
    options = {"include_usage": True}
    chunks = await emulator.chunks(
        "/v1/completions", prompt="hello", max_tokens=3, ignore_eos=True, stream_options=options
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert not any("usage" in c for c in chunks[:-1])


async def test_a_chat_stream_opens_with_the_role(emulator: Emulator) -> None:
    chunks = await emulator.chunks(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=3,
        ignore_eos=True,
    )
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [len(d["content"]) for d in deltas[1:]] == [4, 4, 4]
    assert chunks[0]["object"] == "chat.completion.chunk"


async def test_stream_intervals_group_tokens_after_the_first(start: Start) -> None:
    emulator = await start(stream_interval=4)
    chunks = await emulator.chunks(
        "/v1/completions", prompt="hello", max_tokens=11, ignore_eos=True
    )
    sizes = [len(c["choices"][0]["text"]) // 4 for c in chunks]
    assert sizes[0] == 1
    assert sum(sizes) == 11
    assert all(size <= 4 for size in sizes)


@pytest.mark.parametrize("chat", [False, True])
async def test_another_engine_continues_identically(start: Start, chat: bool) -> None:
    one, other = await start(seed=1), await start(seed=2)

    async def text(emulator: Emulator, so_far: str, tokens: int) -> str:
        if not chat:
            body = {"prompt": "Once upon" + so_far, "max_tokens": tokens, "ignore_eos": True}
            return str((await emulator.complete(**body))["choices"][0]["text"])
        messages = [{"role": "user", "content": "Once upon"}]
        body = {"messages": messages, "max_tokens": tokens, "ignore_eos": True}
        if so_far:
            messages.append({"role": "assistant", "content": so_far})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        answer = await emulator.client.post("/v1/chat/completions", json=body)
        return str(answer.json()["choices"][0]["message"]["content"])

    whole = await text(one, "", 20)
    assert whole[:32] + await text(other, whole[:32], 12) == whole


async def test_an_answer_ends_by_itself_at_the_same_place(emulator: Emulator) -> None:
    whole = await emulator.complete(prompt="Once upon a time")
    text, tokens = whole["choices"][0]["text"], whole["usage"]["completion_tokens"]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert tokens > 1
    rest = await emulator.complete(prompt="Once upon a time" + text[:4])
    assert rest["usage"]["completion_tokens"] == tokens - 1
    cut = await emulator.complete(prompt="Once upon a time", max_tokens=1)
    assert cut["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["abcdefgh", ["abcdefgh"], [1, 2], [[1, 2]]])
async def test_prompts_of_every_kind(emulator: Emulator, prompt: Any) -> None:
    answer = await emulator.complete(prompt=prompt, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 2


async def test_content_may_be_a_list_of_parts(emulator: Emulator) -> None:
    async def tokens(content: Any) -> int:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        answer = await emulator.client.post("/v1/chat/completions", json=body)
        return int(answer.json()["usage"]["prompt_tokens"])

    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]
    assert await tokens(parts) == await tokens("hello world")
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert await tokens([*parts, image]) > await tokens(parts)
    assert await tokens(None) == await tokens("")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"prompt": ""}, 400, "non-empty"),
        ({}, 400, "non-empty"),
        ({"prompt": []}, 400, "non-empty"),
        ({"prompt": ["a", "b"]}, 400, "one prompt"),
        ({"prompt": [-1]}, 400, "token ids"),
        ({"prompt": [1, "a"]}, 400, "token ids"),
        ({"prompt": 5}, 400, "validation error"),
        ({"prompt": "a", "n": 2}, 400, "n must be 1"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0"),
        ({"prompt": "a", "max_tokens": "x"}, 400, "validation error"),
        ({"prompt": "a", "model": "other"}, 404, "The model `other` does not exist"),
        ({"prompt": "abcd" * 100}, 400, "maximum context length is 100 tokens"),
        ({"prompt": "abcd" * 50, "max_tokens": 51}, 400, "you requested 51 output tokens"),
    ],
)
async def test_bad_requests(start: Start, body: dict[str, Any], status: int, says: str) -> None:
    emulator = await start(context_tokens=100)
    answer = await emulator.client.post("/v1/completions", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["code"] == status


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"prompt": "\xff"}'])
async def test_bodies_that_are_not_json(emulator: Emulator, content: bytes) -> None:
    answer = await emulator.client.post("/v1/completions", content=content)
    assert answer.status_code == 400
    assert "validation error" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {},
        {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True},
    ],
)
async def test_bad_chats(emulator: Emulator, body: dict[str, Any]) -> None:
    answer = await emulator.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400


async def test_request_ids(emulator: Emulator) -> None:
    headers = {"X-Request-Id": "abc"}
    body = {"prompt": "a", "max_tokens": 1}
    answer = await emulator.client.post("/v1/completions", json=body, headers=headers)
    assert answer.json()["id"] == "cmpl-abc"


async def test_one_id_twice_at_once(start: Start) -> None:
    emulator = await start()
    headers = {"X-Request-Id": "abc"}
    body = {"prompt": "a", "max_tokens": 50, "ignore_eos": True}
    answers = await asyncio.gather(
        *(emulator.client.post("/v1/completions", json=body, headers=headers) for _ in range(2))
    )
    assert [a.status_code for a in answers] == [200, 200]
    assert len({a.json()["id"] for a in answers}) == 2


async def test_what_it_says_about_itself(start: Start) -> None:
    emulator = await start(aliases=("n",))
    client = emulator.client
    models = (await client.get("/v1/models")).json()["data"]
    assert [(x["id"], x["owned_by"]) for x in models] == [("m", "vllm"), ("n", "vllm")]
    assert models[0]["max_model_len"] == 131_072
    assert (await client.get("/health")).content == b""
    assert (await client.get("/version")).json() == {"version": "0.32.0"}
    assert (await client.get("/server_info")).json()["emulated"] is True
    assert (await client.get("/load")).json() == {"server_load": 0}
    assert (await client.get("/model_info")).status_code == 404
    assert (await client.get("/v1/completions")).status_code == 404
    assert (await client.head("/health")).status_code == 200


async def test_tokenize(emulator: Emulator) -> None:
    answer = await emulator.client.post("/tokenize", json={"prompt": "abcde"})
    assert answer.json()["count"] == 2
    assert answer.json()["tokens"] == [0x64636261, 0x65]
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await emulator.client.post("/tokenize", json=chat)).json()["count"] > 2
    assert (await emulator.client.post("/tokenize", json={"prompt": [1]})).status_code == 400


async def test_the_sglang_dialect(start: Start) -> None:
    emulator = await start(dialect="sglang", context_tokens=50)
    client = emulator.client
    body = {"model": "any", "prompt": "a", "max_tokens": 2, "ignore_eos": True, "rid": "r1"}
    answer = await emulator.complete(**body)
    assert (answer["id"], answer["model"]) == ("r1", "any")
    assert answer["choices"][0]["matched_stop"] is None
    chunks = await emulator.chunks("/v1/completions", **body)
    assert [c["usage"] for c in chunks] == [None, None]
    chat = await emulator.chunks(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=2,
        ignore_eos=True,
    )
    assert chat[-1]["choices"][0]["delta"] == {"reasoning_content": None}
    assert chat[-1]["choices"][0]["finish_reason"] == "length"
    error = (await client.post("/v1/completions", json={"prompt": "abcd" * 60})).json()
    assert error["object"] == "error"
    assert "longer than the model's context length (50 tokens)" in error["message"]
    error = (await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 60})).json()
    assert "You requested a total of 61 tokens" in error["message"]
    assert (await client.get("/model_info")).json()["served_model_name"] == "m"
    assert (await client.get("/v1/loads")).json()["loads"][0]["num_running_reqs"] == 0
    assert (await client.get("/version")).status_code == 404
    assert await emulator.metric("sglang:generation_tokens_total") == 6


async def test_metrics_count_what_happened(emulator: Emulator) -> None:
    await emulator.complete(prompt="abcd" * 10, max_tokens=5, ignore_eos=True)
    await emulator.chunks("/v1/completions", prompt="abcd" * 10, max_tokens=30, ignore_eos=True)
    labels = '{engine="0",model_name="m"}'
    assert await emulator.metric("vllm:prompt_tokens_total" + labels) == 20
    assert await emulator.metric("vllm:prefix_cache_hits_total" + labels) == 8
    assert await emulator.metric("vllm:generation_tokens_total" + labels) == 35
    assert await emulator.metric("vllm:time_to_first_token_seconds_count") == 2
    assert await emulator.metric("vllm:inter_token_latency_seconds_count") == 33
    assert await emulator.metric("vllm:e2e_request_latency_seconds_count") == 2
    success = 'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"}'
    assert await emulator.metric(success) == 2


async def test_a_client_that_leaves_frees_the_engine(emulator: Emulator) -> None:
    emulator.engine.loop.replica.timing = slowed(emulator)
    body = {"prompt": "abcd" * 10, "max_tokens": 1000, "ignore_eos": True, "stream": True}
    async with emulator.client.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
        assert emulator.engine.loop.replica.load(1e9).running == 1
    await emulator.until(lambda: not emulator.engine.loop.answers)
    replica = emulator.engine.loop.replica
    await emulator.until(lambda: replica.cache.held == 0)


async def test_requests_can_be_aborted(emulator: Emulator) -> None:
    emulator.engine.loop.replica.timing = slowed(emulator)
    body = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True}
    headers = {"X-Request-Id": "abc"}
    call = emulator.client.post("/v1/completions", json=body, headers=headers)
    task = asyncio.ensure_future(call)
    await emulator.until(lambda: "cmpl-abc" in emulator.engine.loop.answers)
    ids = {"request_ids": ["cmpl-abc", "unknown"]}
    assert (await emulator.client.post("/abort_requests", json=ids)).status_code == 200
    assert (await task).json()["choices"][0]["finish_reason"] == "abort"
    bad = await emulator.client.post("/abort_requests", content=b"x")
    assert bad.status_code == 400


async def test_sglang_aborts_by_rid_inside_a_stream(start: Start) -> None:
    emulator = await start(dialect="sglang")
    emulator.engine.loop.replica.timing = slowed(emulator)
    body = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "rid": "r"}
    task = asyncio.ensure_future(emulator.chunks("/v1/completions", **body))
    await emulator.until(lambda: "r" in emulator.engine.loop.answers)
    await emulator.client.post("/abort_request", json={"rid": "r"})
    assert (await task)[-1]["choices"][0]["finish_reason"] == "abort"


async def test_resetting_the_prefix_cache(emulator: Emulator) -> None:
    for _ in range(2):
        answer = await emulator.complete(prompt="abcd" * 10, max_tokens=1)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert (await emulator.client.post("/reset_prefix_cache")).status_code == 200


async def test_an_engine_too_small_for_a_request_says_so(start: Start) -> None:
    emulator = await start(ReplicaOptions(block_size=4, kv_capacity_tokens=40))
    answer = await emulator.client.post(
        "/v1/completions", json={"prompt": "abcd" * 30, "max_tokens": 20}
    )
    assert answer.status_code == 400
    assert "never fit" in answer.json()["error"]["message"]


async def test_the_next_turn_hits_the_answer_too(emulator: Emulator) -> None:
    prompt = "abcd" * 10
    answer = await emulator.complete(prompt=prompt, max_tokens=15, ignore_eos=True)
    longer = prompt + answer["choices"][0]["text"] + "and then?"
    answer = await emulator.complete(prompt=longer, max_tokens=1)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 24
