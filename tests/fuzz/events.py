"""Single events of an engine, of any shape: what reads them raises Unsafe or nothing at all.

What goes on is still events, each of them JSON, under the stream's own id, without what the router
asked for.
"""

from __future__ import annotations

import json

from infctl.core.events import Usage
from infctl.router.continuation import Joint, Sofar, Unsafe, ending, room
from infctl.router.tap import given_up
from infctl.router.usage import parse_usage, usage_of

from .bodies import TOKENS
from .harness import Broken
from .source import Source, mutated

KEYS = (
    b"choices", b"usage", b"error", b"id", b"delta", b"text", b"token_ids", b"prompt_token_ids",
    b"finish_reason", b"index", b"logprobs", b"content", b"role", b"prompt_tokens", b"code",
    b"completion_tokens", b"prompt_tokens_details", b"cached_tokens", b"message", b"tool_calls",
    b"total_tokens", b"input_tokens", b"reasoning_content",
)  # fmt: skip
VALUES = (
    b"null", b"0", b"1", b"-1", b"1.5", b"1e400", b"true", b'""', b'"a"', b'"abort"', b"[]", b"{}",
    b"[1]", b'"stop"', b'"assistant"', b"500", b'"500"', b"99999999999999999999", b'"\\ud83d"',
    b"[null]", b'["a"]', b'"\xe4\xb8\x96"',
)  # fmt: skip
FIRST = b'data: {"id":"c","created":1,"choices":[{"text":"ab","token_ids":[1,2]}]}\n\n'
CHAT = b'data: {"id":"c","created":1,"choices":[{"delta":{"role":"assistant","content":"ab"}}]}\n\n'


def value(source: Source, depth: int) -> bytes:
    """A value, deep ones where such stand."""
    how = source.below(4)
    if how == 0 and depth < 4:
        return b"{%s}" % b",".join(
            b'"%s":%s' % (source.pick(KEYS), value(source, depth + 1))
            for _ in range(source.below(4))
        )
    if how == 1 and depth < 4:
        return b"[%s]" % b",".join(value(source, depth + 1) for _ in range(source.below(3)))
    return source.pick(VALUES)


def an_event(source: Source) -> bytes:
    """An event like an engine's, or anything."""
    how = source.below(4)
    if how == 0:
        return value(source, 0)
    choice = b",".join(
        b'"%s":%s' % (source.pick(KEYS), value(source, 2)) for _ in range(source.below(4))
    )
    usage = b',"usage":{"prompt_tokens":%s,"completion_tokens":%s}' % (
        source.pick(VALUES),
        source.pick(VALUES),
    )
    return b'{"id":%s,"choices":[{%s}]%s}' % (
        source.pick(VALUES),
        choice,
        usage if how == 3 else b"",
    )


class Events:
    """The target."""

    def __call__(self, data: bytes) -> None:
        source = Source(data)
        chat, wants = source.one_in(2), source.one_in(2)
        event = mutated(source, an_event(source), TOKENS, 2)
        given_up(event).encode("utf-8", "surrogatepass")
        self._usage(event)
        sofar = Sofar()
        sofar.take(CHAT if chat else FIRST)
        joint = Joint(sofar, wants)
        try:
            self._joined(joint.join(b"data: " + event + b"\n\ndata: [DONE]\n\n"), wants)
        except Unsafe:
            return
        if joint.usage:
            usage_of(joint.usage)
        self._taken(b"data: " + event + b"\n\n", chat)

    def _usage(self, event: bytes) -> None:
        found = parse_usage(event)
        if found is not None and not isinstance(found, Usage):
            raise Broken(f"usage is {found!r}")

    def _joined(self, out: bytes, wants: bool) -> None:
        *rows, done, rest = out.split(b"\n\n")
        if rest or done != b"data: [DONE]":
            raise Broken(f"half an event, or no end: {out!r}")
        for row in rows:
            found = json.loads(row.removeprefix(b"data: "))
            if found.get("id") != "c" or "prompt_token_ids" in found:
                raise Broken(f"another stream's event: {found}")
            choices = found.get("choices") or []
            if any("token_ids" in choice for choice in choices):
                raise Broken(f"token ids: {found}")
            if not choices and found.get("usage") and not wants:
                raise Broken(f"usage nobody asked for: {found}")

    def _taken(self, event: bytes, chat: bool) -> None:
        sofar = Sofar()
        try:
            sofar.take(event)
        except Unsafe:
            return
        room({"max_tokens": 5}, chat, sofar)
        ending(sofar, chat, True)
