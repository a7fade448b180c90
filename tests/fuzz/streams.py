"""Streams: the tap against a naive reading of the same bytes.

The reference undoes all chunks, splits all events, and drops what was asked for. Framing here is
always right, in every form: llhttp stands before the tap and refuses the rest.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from infctl.router.tap import Tap

from .harness import Broken
from .source import Source, cut, mutated
from .strict import chunked

TEXTS = (
    "a", "", "\u4e16\u754c", 'say "hi"', "\\", "\n", "[]", '"choices":[]', '"code":5', ':"abort"',
    ',"token_ids":[1]', "data: [DONE]", "\n\n", "]", "0\r\n\r\n", "x" * 700, "\U0001f600",
)  # fmt: skip
ODD = (
    b": ping\n\n", b"data: a\ndata: b\n\n", b"event: x\ndata: {}\n\n", b"\n\n", b"data: 5\n\n",
    b"data: {}\r\n\r\n", b'data: {"choices":5,"a":"b:\\"abort"}\n\n', b"data: []\n\n",
    b'data: {"error":{"code":404}}\n\n', b'data: {"error":"code","code":5}\n\n',
    b'data: {"choices":[5],"finish_reason":"abort"}\n\n', b"data: nothing at all",
    b'data: {"error":{"code":500}', b"\n", b"data: x\r\rdata: y\n\n", b"retry: 1\n\n",
)  # fmt: skip
TOKENS = (
    b"\n\n", b"\n", b"\r\n", b"data: ", b'"code":5', b':"abort"', b'"choices":[]',
    b',"token_ids":[',
    b"[DONE]", b"}", b"]", b'"usage":{', b"0\r\n\r\n", b"\r\n\r\n", b"\n\n\r\n", b",",
    b"null", b"\xff",
)  # fmt: skip


class Stream(NamedTuple):
    """A payload, and what of it is to pass: None where only what holds for all is known."""

    payload: bytes
    passes: bytes | None
    fails: bool


def event(found: dict[str, Any]) -> bytes:
    """As engines write one."""
    return b"data: " + msgspec.json.encode(found) + b"\n\n"


def good(source: Source, ids: bool, usage: bool) -> Stream:
    """A stream as an engine sends it, and what is left when `ids` and `usage` are taken out."""
    tells, sent, left = source.one_in(2), [], []
    if source.one_in(8):
        sent.append(b": ping\n\n")
        left.append(sent[0])
    for number in range(source.below(6)):
        choice: dict[str, Any] = {"index": 0, "text": source.pick(TEXTS)}
        more = choice | {"finish_reason": source.pick((None, "stop"))}
        plain = {"id": "c", "choices": [more]}
        left.append(event(plain))
        if tells:
            more = choice | {"finish_reason": more["finish_reason"], "token_ids": [number, 7]}
            if not number:
                more["prompt_token_ids"] = source.pick(([1, 2], None, []))
        sent.append(event({"id": "c", "choices": [more]}))
    if not ids:
        left = list(sent)
    ending = source.below(5)
    if ending in (1, 2):
        sent.append(event({"id": "c", "choices": [], "usage": {"prompt_tokens": 1}}))
        if not usage:
            left.append(sent[-1])
    if ending == 3:
        error = {"error": {"message": "died", "code": source.pick((500, 503))}}
        abort = {"choices": [{"text": "", "finish_reason": "abort"}]}
        sent.append(event(source.pick((error, abort))))
    done = [b"data: [DONE]\n\n"] if ending != 1 else []
    passes = b"".join(left + ([] if ending == 3 else done))
    return Stream(b"".join(sent + done), passes, ending == 3)


def odd(source: Source, ids: bool, usage: bool) -> Stream:
    """Anything. It passes as it is where nothing was asked for."""
    parts = [good(source, ids, usage).payload]
    for _ in range(source.below(4)):
        parts.insert(source.below(len(parts) + 1), source.pick(ODD))
    return Stream(mutated(source, b"".join(parts), TOKENS), None, False)


def framed(source: Source, payload: bytes) -> bytes:
    """In chunks: one an event, or of any size and form."""
    if source.one_in(2):
        pieces = [p for p in re.split(rb"(?<=\n\n)", payload) if p]
    else:
        pieces, at = [], 0
        while at < len(payload):
            size = min(source.pick((1, 5, 40, 200, 3000)) + source.below(20), len(payload) - at)
            pieces.append(payload[at : at + size])
            at += size
    form = source.pick((b"%x", b"%x", b"%X", b"00%x", b"%x;a=b", b'%x;a="b c"'))
    made = b"".join(form % len(p) + b"\r\n" + p + b"\r\n" for p in pieces)
    trailer = source.pick((b"", b"", b"", b"X-T: 1\r\n"))
    return made + source.pick((b"0", b"0", b"0", b"00", b"0;a=b")) + b"\r\n" + trailer + b"\r\n"


class Streams:
    """The target."""

    def __call__(self, data: bytes) -> None:
        source = Source(data)
        ids, usage = source.one_in(2), source.one_in(2)
        stream = (odd if source.one_in(3) else good)(source, ids, usage)
        if b"\n\n\r\n" in stream.payload:
            return  # an event's end, then an empty line of another kind: taken for a chunk's end
        raw = framed(source, stream.payload)
        ends = source.below(4) != 3
        sent = raw if ends else raw[: source.below(len(raw))]
        tap, out = Tap(ids=ids, usage=usage), b""
        for piece in cut(source, sent):
            passed = tap.feed(piece) if piece else b""
            out += passed
            between(passed)
            if tap.failure:
                break
        check(stream, tap, out, sent, raw, ids or usage)


def between(out: bytes) -> None:
    """What passes at once ends a chunk."""
    _, complete, end = chunked(out, 0)
    if end != len(out) or (not complete and out and not out.endswith(b"\r\n")):
        raise Broken(f"something behind the last chunk, or half a chunk: {out!r}")


def check(stream: Stream, tap: Tap, out: bytes, sent: bytes, raw: bytes, asks: bool) -> None:
    """Raises Broken where other bytes passed than the reference passes."""
    payload, complete, end = chunked(out, 0)
    if end != len(out):
        raise Broken(f"something behind the last chunk: {out!r}")
    came, whole, _ = chunked(sent, 0)
    if whole and len(sent) != len(raw):
        raise Broken("the reference is wrong")
    if complete and (not whole or tap.failure):
        raise Broken("what was cut or failed looks complete")
    if whole and not complete and not tap.failure:
        raise Broken("what is whole looks cut")
    if stream.passes is None:
        if not asks and not tap.failure and not came.startswith(payload):
            raise Broken(f"{came!r} became {payload!r}")
        if not asks and whole and not tap.failure and payload != came:
            raise Broken(f"{came!r} became {payload!r}")
        return
    if stream.fails != bool(tap.failure) and whole:
        raise Broken(f"the failure was not seen, or there was none: {tap.failure!r}")
    if not stream.passes.startswith(payload):
        raise Broken(f"{stream.passes!r} became {payload!r}")
    if whole and payload != stream.passes:
        raise Broken(f"not all of {stream.passes!r} passed: {payload!r}")
    if payload and not payload.endswith(b"\n\n"):
        raise Broken(f"half an event: {payload!r}")
