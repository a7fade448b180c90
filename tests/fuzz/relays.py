"""Continuation: engines that die at any byte of a well-formed stream, again and again.

The engines say one known text. What the client is told must be that text, whole, once, however
often an engine gives up; and the request for the rest must ask for the rest alone.
"""

from __future__ import annotations

import json
from typing import Any

from .clients import chunks
from .harness import Broken, Upstream, World, feed, quietly, running
from .source import Source, cut
from .streams import event, framed
from .strict import request, response

TEXT = "h\u00e9llo \u4e16\u754c, \U0001f600 on and on"  # a character is a token
PROMPT = "once"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DEATHS = ("closed", "reset", "garbage", "error", "abort", "silence")


class Relay:
    """One answer, told by several engines."""

    def __init__(self, world: World, source: Source, kind: str) -> None:
        self.world, self.source, self.kind = world, source, kind
        self.chat = source.one_in(2) and kind != "openai"
        self.ids = source.one_in(2)
        self.wants_usage = source.one_in(2)
        self.deaths = source.below(3)
        self.asked = 0
        self.bunch = source.pick((1, 1, 2, 3, 30))
        self.tells = self.ids and (kind == "vllm" or (kind == "sglang" and not self.chat))
        self.limit = source.pick((len(TEXT), len(TEXT), 40, 3))

    def play(self) -> None:
        """The whole story."""
        connection, wire = self.world.client()
        feed(connection, wire, self._request())
        for _ in range(20):
            self.world.settle()
            waiting = [(u, d) for u in self.world.upstreams if (d := u.take())]
            for upstream, data in waiting:
                self._answer(upstream, data)
            if not waiting and not self.world.router.exchanges:
                break
        self.world.settle()
        self._check(bytes(wire.out))

    def _request(self) -> bytes:
        body: dict[str, Any] = {"model": "m", "stream": True, "temperature": 0}
        body["max_tokens"] = self.limit
        if self.chat:
            body["messages"] = [{"role": "user", "content": PROMPT}]
        else:
            body["prompt"] = self.source.pick((PROMPT, [PROMPT], PROMPT))
        if self.wants_usage:
            body["stream_options"] = {"include_usage": True}
        path = b"/v1/chat/completions" if self.chat else b"/v1/completions"
        text = json.dumps(body).encode()
        head = b"POST %s HTTP/1.1\r\nHost: r\r\n" % path
        if self.source.one_in(4):
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(Source(b""), text)
        return head + b"Content-Length: %d\r\n\r\n" % len(text) + text

    def _answer(self, upstream: Upstream, data: bytes) -> None:
        found = request(data)
        asked = json.loads(found.body)
        if found.line[1] == b"/tokenize":
            text = b'{"count":%d}' % len(asked["prompt"])
            upstream.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return
        if found.line[1] == b"/detokenize":
            text = json.dumps({"prompt": "".join(map(chr, asked["tokens"]))}).encode()
            upstream.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return
        self.asked += 1
        events = self._events(asked)
        dies = self.asked <= self.deaths
        if not dies:
            self._say(upstream, HEAD + framed(self.source, b"".join(events)))
            return
        self._die(upstream, events)

    def _say(self, upstream: Upstream, data: bytes) -> None:
        for piece in cut(self.source, data):
            upstream.say(piece)
            self.world.loop.run()

    def _die(self, upstream: Upstream, events: list[bytes]) -> None:
        how = self.source.pick(DEATHS)
        if how in ("error", "abort"):
            last = {"error": {"message": "died", "code": 500}}
            if how == "abort":
                choice = {"delta": {}} if self.chat else {"text": ""}
                last = {"choices": [{"index": 0, "finish_reason": "abort"} | choice]}
            kept = events[: self.source.below(max(len(events) - 1, 1))]
            self._say(
                upstream, HEAD + framed(self.source, b"".join(kept) + event(last) + events[-1])
            )
            return
        data = HEAD + framed(self.source, b"".join(events))
        self._say(upstream, data[: self.source.below(len(data))])
        if how == "garbage":
            upstream.say(b"x" * 5000)
        if how == "silence":
            while not upstream.wire.closing:
                self.world.pass_time(30.0)
        upstream.end(OSError("reset") if how == "reset" else None)
        self.world.loop.run()

    def _known(self, asked: dict[str, Any]) -> tuple[str, int]:
        """What is out already, and the tokens of the prompt."""
        if self.chat:
            goes_on = asked.get("continue_final_message")
            known = asked["messages"][-1]["content"] if goes_on else ""
            return known, 4 + len(known)
        prompt = asked["prompt"]
        if isinstance(prompt, list):
            prompt = "".join(map(chr, prompt)) if isinstance(prompt[0], int) else prompt[0]
        return prompt.removeprefix(PROMPT), len(prompt)

    def _events(self, asked: dict[str, Any]) -> list[bytes]:
        known, prompt_tokens = self._known(asked)
        counted = asked["max_tokens"] == self.limit - len(known)
        if not TEXT.startswith(known) or not counted:
            raise Broken(f"asked to go on from {known!r} by {asked['max_tokens']}")
        rest = TEXT[len(known) :][: asked["max_tokens"]]
        tell = self.ids and asked.get("return_token_ids")
        made = []
        if self.chat:
            prompt = {"prompt_token_ids": [1, 2, 3]} if tell else {}
            made.append(self._event({"delta": {"role": "assistant", "content": ""}}, prompt))
        for at in range(0, len(rest), self.bunch):
            text = rest[at : at + self.bunch]
            choice: dict[str, Any] = {"delta": {"content": text}} if self.chat else {"text": text}
            if at + self.bunch >= len(rest):
                choice["finish_reason"] = "stop"
            if tell:
                choice["token_ids"] = [ord(c) for c in text]
                if not at and not self.chat:
                    choice["prompt_token_ids"] = [ord(c) for c in PROMPT + known]
            made.append(self._event(choice))
        if (asked.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(rest)}
            usage["total_tokens"] = sum(usage.values())
            made.append(event({"id": f"e{self.asked}", "choices": [], "usage": usage}))
        return [*made, b"data: [DONE]\n\n"]

    def _event(self, choice: dict[str, Any], more: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "finish_reason": None} | choice
        found = {"id": f"e{self.asked}", "object": "o", "created": self.asked, "choices": [choice]}
        return event(found | (more or {}))

    def _check(self, out: bytes) -> None:
        found = response(out, 0, closed=False)
        if found is None or not found.complete or found.end != len(out):
            raise Broken(f"no whole answer: {out!r}")
        text, events, told = said(found.body)
        if told is not None or found.status != 200:
            self._excused(text, told or str(found.body))
            return
        if text != TEXT[: self.limit]:
            raise Broken(f"{text!r} was told: {found.body!r}")
        if len({e.get("id") for e in events}) > 1:
            raise Broken(f"one stream, several ids: {found.body!r}")
        if b"token_ids" in found.body:
            raise Broken(f"token ids nobody asked for: {found.body!r}")
        usages = [e["usage"] for e in events if e.get("usage")]
        if not self.wants_usage and usages:
            raise Broken("usage nobody asked for")
        if self.wants_usage and len(usages) > 1:
            raise Broken(f"usage told twice: {found.body!r}")
        for usage in usages:
            total = len(TEXT[: self.limit])
            if usage["completion_tokens"] != total:
                raise Broken(f"{usage} for {total} tokens")

    def _excused(self, text: str, told: str) -> None:
        """All of these can be continued."""
        if not TEXT.startswith(text):
            raise Broken(f"{text!r} was told, then {told}")
        raise Broken(f"not continued: {told}")


def said(payload: bytes) -> tuple[str, list[dict[str, Any]], str | None]:
    """The text of a stream, its events, and the error at its end, if there is one."""
    if payload.startswith(b"{"):
        return "", [], payload.decode()
    rows = payload.split(b"\n\n")
    if rows.pop():
        raise Broken(f"half an event: {payload!r}")
    last = rows.pop() if rows else b""
    events = [json.loads(row.removeprefix(b"data: ")) for row in rows]
    told = None
    if last != b"data: [DONE]":
        told = str(json.loads(last.removeprefix(b"data: ")).get("error"))
    parts = []
    for one in events:
        for choice in one["choices"]:
            parts.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    return "".join(parts), events, told


class Relays:
    """The target: a router for each kind of engine."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[World, int]] = {}

    def __call__(self, data: bytes) -> None:
        source = Source(data)
        kind = source.pick(("vllm", "sglang", "openai"))
        world, count = self.made.get(kind) or (World(4, kind), 0)
        self.made[kind] = (world, count + 1)
        with running(world.loop):
            try:
                Relay(world, source, kind).play()
                world.end()
            except BaseException:
                quietly(lambda: self.made.pop(kind) and None)
                raise
        if count >= 5000:
            self.made.pop(kind)
