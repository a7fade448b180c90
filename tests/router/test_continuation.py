"""An answer whose engine fails goes on from another, and the client sees one stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.router.continuation import Joint, Sofar, Unsafe, body, check, ending, room
from infctl.router.tap import Tap

from .conftest import SSE_HEAD, Running, Seen, chunk, whole

COMPLETION = {"model": "m", "prompt": "once", "max_tokens": 12, "temperature": 0, "stream": True}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "once"}],
    "max_tokens": 12,
    "temperature": 0,
    "stream": True,
}
TEXT = "héllo 世界, on"  # 12 characters, one token each
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def event(choice: dict[str, Any] | None, id: str = "cmpl-1", **more: Any) -> bytes:
    choices = [] if choice is None else [{"index": 0, "finish_reason": None} | choice]
    found = {"id": id, "object": "o", "created": 7, "model": "m", "choices": choices} | more
    return (
        b"data: " + json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    )


def said(answer: bytes) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stream, and its events."""
    lines = answer.split(b"\n\n")
    assert lines[-1] == b""
    assert lines.count(b"data: [DONE]") == 1
    assert lines[-2] == b"data: [DONE]"
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-2]]
    pieces = []
    for found in events:
        for choice in found["choices"]:
            pieces.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(pieces), events


def engine(
    die_after: int | None = None,
    chat: bool = False,
    ids: bool = True,
    how: Callable[[asyncio.StreamWriter], None] = lambda w: w.transport.abort(),
    bunch: int = 1,
    limit: int = 0,
) -> Any:
    """An engine that says TEXT, a character a token, and may fail after so many of them; given
    a prompt that ends in a part of TEXT, it says the rest."""

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(seen.body)
        if seen.target == "/detokenize":
            writer.write(whole(json.dumps({"prompt": "".join(map(chr, asked["tokens"]))}).encode()))
            return
        if seen.target == "/tokenize":
            writer.write(whole(json.dumps({"count": len(asked["prompt"])}).encode()))
            return
        if chat:
            known = asked["messages"][-1]["content"] if asked.get("continue_final_message") else ""
            prompt_tokens = 4 + len(known)
        else:
            prompt = asked["prompt"]
            prompt = "".join(map(chr, prompt)) if isinstance(prompt, list) else prompt
            known, prompt_tokens = prompt.removeprefix("once"), len(prompt)
        assert TEXT.startswith(known)
        rest = TEXT[len(known) :][: limit or asked["max_tokens"]]
        tell = ids and asked.get("return_token_ids")
        writer.write(SSE_HEAD)
        if chat:
            opening = {"delta": {"role": "assistant", "content": ""}}
            writer.write(chunk(event(opening, seen.headers["x-request-id"])))
        for at in range(0, len(rest), bunch):
            text = rest[at : at + bunch]
            if die_after is not None and at >= die_after:
                how(writer)
                return
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            if tell:
                choice["token_ids"] = [ord(c) for c in text]
                if not at and not chat:
                    choice["prompt_token_ids"] = [ord(c) for c in prompt]
            if at + bunch >= len(rest):
                choice["finish_reason"] = "length"
            writer.write(chunk(event(choice, seen.headers["x-request-id"])))
            await writer.drain()
            await asyncio.sleep(0.002)
        if (asked.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(rest)}
            usage["total_tokens"] = sum(usage.values())
            writer.write(chunk(event(None, usage=usage)))
        writer.write(DONE)

    return script


async def through(
    running: Running, start_request: dict[str, Any], path: str = "/v1/completions"
) -> bytes:
    status, _, answer = await running.post(path, start_request, X_Request_Id="abc")
    assert status == 200
    return answer


def bodies(engines: list[Any], path: str) -> list[dict[str, Any]]:
    return [json.loads(s.body) for e in engines for s in e.seen if s.target == path]


FAILURES: dict[str, Callable[[asyncio.StreamWriter], None]] = {
    "reset": lambda w: w.transport.abort(),
    "closed": lambda w: w.close(),
    "cut inside an event": lambda w: (w.write(b"40\r\ndata: {half"), w.close())[0],
    "an error event": lambda w: w.write(
        chunk(b'data: {"error":{"message":"engine died","code":500}}\n\n') + DONE
    ),
    "an abort": lambda w: w.write(chunk(event({"text": "", "finish_reason": "abort"})) + DONE),
    "garbage": lambda w: w.write(b"this is no chunk\r\n"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "text"])
@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_a_completion_goes_on_where_it_was_broken_off(
    start_engine: Any, start_router: Any, failure: str, ids: bool, kind: str
) -> None:
    one, two = engine(5, ids=ids, how=FAILURES[failure]), engine(ids=ids)
    engines = [await start_engine(one), await start_engine(two)]
    async with start_router(engines, {"picker": "round-robin"}, kind=kind) as running:
        answer = await through(running, COMPLETION)
    text, events = said(answer)
    assert text == TEXT
    assert {e["id"] for e in events} == {"abc"}
    assert b"token_ids" not in answer
    assert b"usage" not in answer
    _, second = bodies(engines, "/v1/completions")
    assert second["max_tokens"] == 12 - 5
    exact = ids and kind == "vllm"
    prompt = "once" + TEXT[:5]
    assert second["prompt"] == ([ord(c) for c in prompt] if exact else prompt)
    assert [s.headers["x-request-id"] for e in engines for s in e.seen if s.target[1] == "v"] == [
        "abc",
        "abc",
    ]
    assert "error" not in answer.decode()


async def test_usage_is_that_of_the_whole(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(engine(5)), await start_engine(engine())]
    asked = COMPLETION | {"stream_options": {"include_usage": True}}
    async with start_router(engines, {"picker": "round-robin"}, kind="vllm") as running:
        _, events = said(await through(running, asked))
    assert events[-1]["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 12,
        "total_tokens": 16,
    }


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_chat_goes_on_and_opens_once(
    start_engine: Any, start_router: Any, kind: str
) -> None:
    engines = [await start_engine(engine(5, chat=True)), await start_engine(engine(chat=True))]
    async with start_router(engines, {"picker": "round-robin"}, kind=kind) as running:
        text, events = said(await through(running, CHAT, "/v1/chat/completions"))
    assert text == TEXT
    deltas = [c["delta"] for e in events for c in e["choices"]]
    assert [d for d in deltas if "role" in d] == [{"role": "assistant", "content": ""}]
    second = bodies(engines, "/v1/chat/completions")[1]
    assert second["messages"][-1] == {"role": "assistant", "content": TEXT[:5]}
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)


async def test_it_goes_on_more_than_once(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(engine(n, bunch=2)) for n in (4, 4, 99)]
    async with start_router(engines, {"picker": "round-robin"}, kind="vllm") as running:
        text, _ = said(await through(running, COMPLETION))
        assert running.router.telemetry.kept_bytes == 0
        assert float(running.router.director.fleet.inflight.sum()) == 0.0
    assert text == TEXT
    assert [b["max_tokens"] for b in bodies(engines, "/v1/completions")] == [12, 8, 4]


@pytest.mark.parametrize("bunch", [1, 3])
async def test_tokens_that_share_an_event_are_counted(
    start_engine: Any, start_router: Any, bunch: int
) -> None:
    """An engine that tells no ids may put several tokens into an event: `max_tokens` holds."""
    engines = [await start_engine(engine(6, chat=True, ids=False, bunch=bunch))]
    engines.append(await start_engine(engine(chat=True, ids=False)))
    async with start_router(engines, {"picker": "round-robin"}, kind="sglang") as running:
        text, _ = said(await through(running, CHAT, "/v1/chat/completions"))
    assert text == TEXT
    assert bodies(engines, "/v1/chat/completions")[1]["max_tokens"] == 6


async def test_a_count_that_leaves_nothing_ends_the_answer(
    start_engine: Any, start_router: Any
) -> None:
    """All tokens are out, but only the count says so."""
    limited = CHAT | {"max_tokens": 6}
    engines = [await start_engine(engine(6, chat=True, ids=False, bunch=6, limit=99))]
    engines.append(await start_engine(engine(chat=True)))
    async with start_router(engines, {"picker": "round-robin"}, kind="sglang") as running:
        text, events = said(await through(running, limited, "/v1/chat/completions"))
    assert text == TEXT[:6]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert not bodies(engines[1:], "/v1/chat/completions")


async def test_what_lacks_only_its_ending_needs_no_engine(
    start_engine: Any, start_router: Any
) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(event({"text": "all", "finish_reason": "stop"})))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    only = await start_engine(script)
    async with start_router([only], kind="vllm") as running:
        text, _ = said(await through(running, COMPLETION))
    assert (text, len(only.seen)) == ("all", 1)


UNSAFE = {
    "n": ({"n": 2}, "several choices"),
    "logprobs": ({"logprobs": 1}, "log probabilities"),
    "guided": ({"guided_regex": "a+"}, "guided"),
    "json": ({"response_format": {"type": "json_object"}}, "guided"),
    "penalty": ({"presence_penalty": 1.5}, "presence penalty"),
    "seed": ({"seed": 1, "temperature": 1}, "seed"),
    "stop": ({"stop": ["lo!"]}, "stop string"),
    "echo": ({"echo": True}, "echoed"),
    "tool": ({"tool_choice": "required"}, "tool call"),
}


@pytest.mark.parametrize("case", UNSAFE)
async def test_what_cannot_be_continued_ends_with_the_reason(
    start_engine: Any, start_router: Any, case: str
) -> None:
    engines = [await start_engine(engine(5)), await start_engine(engine())]
    more, reason = UNSAFE[case]
    async with start_router(engines, {"picker": "round-robin"}, kind="vllm") as running:
        answer = await through(running, COMPLETION | more)
    error = json.loads(answer.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
    assert error["code"] == 502
    assert reason in error["message"]
    assert sum(len(e.seen) for e in engines) == 1


async def test_beyond_the_budget_nothing_is_kept(start_engine: Any, start_router: Any) -> None:
    engines = [await start_engine(engine(5)), await start_engine(engine())]
    routing = {"picker": "round-robin", "limits": {"continuation_mib_max": 0}}
    async with start_router(engines, routing, kind="vllm") as running:
        answer = await through(running, COMPLETION)
        assert running.router.telemetry.kept_bytes == 0
    assert b"too much was kept" in answer


async def test_without_another_engine_it_says_so(start_engine: Any, start_router: Any) -> None:
    only = await start_engine(engine(5))
    async with start_router([only], {"attempts_max": 1}, kind="vllm") as running:
        answer = await through(running, COMPLETION)
    assert b"1 endpoints failed" in answer
    assert not answer.endswith(b"[DONE]\n\n")


# --- pure ---------------------------------------------------------------------------------------


def sofar(*events: bytes) -> Sofar:
    found = Sofar()
    found.take(b"".join(events))
    return found


def test_text_that_is_held_back_is_generated_again() -> None:
    """Half a character, or what may become a stop string: its tokens are no part of the text."""
    found = sofar(
        event({"text": "a", "token_ids": [97], "prompt_token_ids": [1, 2]}),
        event({"text": "", "token_ids": [228]}),
        event({"text": "", "token_ids": [184]}),
    )
    assert (found.text, found.ids, found.tokens) == ("a", [97], 1)
    assert body(COMPLETION, False, found, exact=True)["prompt"] == [1, 2, 97]


def test_text_without_ids_spoils_the_ids_for_good() -> None:
    found = sofar(event({"text": "a"}), event({"text": "b", "token_ids": [98]}))
    assert (found.text, found.ids, found.tokens) == ("ab", None, 2)


def test_a_prompt_of_ids_needs_ids() -> None:
    asked = COMPLETION | {"prompt": [5, 6]}
    with_ids = sofar(event({"text": "a", "token_ids": [97]}))
    assert body(asked, False, with_ids, exact=True)["prompt"] == [5, 6, 97]
    with pytest.raises(Unsafe):
        body(asked, False, sofar(event({"text": "a"})), exact=False)


def test_limits_shrink_by_what_is_out() -> None:
    found = sofar(event({"text": "abc", "token_ids": [1, 2, 3]}))
    assert room({"max_tokens": None}, False, found) == 13
    assert room({}, True, found) is None
    made = body(CHAT | {"max_completion_tokens": 9, "min_tokens": 2}, True, found, exact=False)
    assert (made["max_completion_tokens"], made["max_tokens"], made["min_tokens"]) == (6, 6, 0)
    assert "max_tokens" not in body({"messages": []}, True, found, exact=False)
    assert body({"prompt": "x"}, False, found, exact=False)["max_tokens"] == 13


def test_a_message_that_was_continued_already_goes_on_as_one() -> None:
    asked = CHAT | {
        "continue_final_message": True,
        "messages": [{"role": "assistant", "content": "on"}],
    }
    made = body(asked, True, sofar(event({"delta": {"content": "ce"}})), exact=False)
    assert made["messages"] == [{"role": "assistant", "content": "once"}]


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"reasoning": "hm"}},
        {"text": "a", "logprobs": {"tokens": ["a"]}},
        {"text": "a", "index": 1},
    ],
)
def test_what_no_prompt_can_hold_is_unsafe(choice: dict[str, Any]) -> None:
    with pytest.raises(Unsafe):
        sofar(event(choice))


def test_a_seed_is_safe_where_nothing_is_drawn() -> None:
    found = sofar(event({"text": "a"}))
    check({"seed": 1, "temperature": 0}, found)
    check({"seed": 1}, Sofar())
    with pytest.raises(Unsafe):
        check({"seed": 1}, found)


def test_the_ending_of_a_complete_answer() -> None:
    found = sofar(event({"text": "ab", "token_ids": [1, 2], "prompt_token_ids": [7]}))
    lines = ending(found, chat=False, wants_usage=True).split(b"\n\n")
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-2]]
    assert events[0]["choices"][0]["finish_reason"] == "length"
    assert events[1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert lines[-2:] == [b"data: [DONE]", b""]


def test_continuous_usage_counts_on() -> None:
    joint = Joint(sofar(event({"text": "ab", "token_ids": [1, 2]})), wants_usage=True)
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    details = {"prompt_tokens_details": {"cached_tokens": 11}}
    out = joint.join(event({"text": "c"}, usage=usage | details))
    assert json.loads(out.removeprefix(b"data: "))["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 10},
    }


# --- the tap ------------------------------------------------------------------------------------

WORDS = st.lists(st.text(max_size=6), min_size=1, max_size=8)


@given(WORDS, st.lists(st.integers(1, 90), max_size=40), st.booleans(), st.booleans())
def test_a_stream_passes_whole_whatever_its_pieces(
    words: list[str], sizes: list[int], tells: bool, usage: bool
) -> None:
    """Nothing is lost or reordered; what the router asked for is gone; what passes is events."""
    plain = [event({"text": w}) for w in words]
    told = [event({"text": w, "token_ids": [1, 2]}) for w in words] if tells else plain
    extra = event(None, usage={"prompt_tokens": 1, "completion_tokens": 2})
    raw = b"".join(map(chunk, [*told, *([extra] if usage else []), b"data: [DONE]\n\n"]))
    raw += b"0\r\n\r\n"
    tap, out = Tap(ids=True, usage=True), b""
    for size in [*sizes, len(raw)]:
        piece, raw = raw[:size], raw[size:]
        if piece:
            out += tap.feed(piece)
            assert not out or out.endswith((b"\n\n\r\n", b"0\r\n\r\n"))
    undone = b""
    while out:
        length, _, out = out.partition(b"\r\n")
        undone, out = undone + out[: int(length, 16)], out[int(length, 16) + 2 :]
    assert undone == b"".join(plain) + b"data: [DONE]\n\n"
    assert not tap.failure


def test_text_that_looks_like_an_end_passes() -> None:
    odd = ['"choices":[]', '"code":5', ':"abort"', ',"token_ids":[1]', "data: [DONE]"]
    tap = Tap(ids=True, usage=True)
    raw = [chunk(event({"text": t, "token_ids": [3]})) for t in odd]
    out = b"".join(map(tap.feed, raw))
    assert out == b"".join(chunk(event({"text": t})) for t in odd)


def test_a_clients_mistake_is_no_failure_of_the_engine() -> None:
    tap = Tap()
    data = chunk(b'data: {"error":{"message":"too long","code":400}}\n\n')
    assert tap.feed(data) == data
    assert not tap.failure
