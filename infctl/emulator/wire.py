"""The bytes of answers, as vLLM 0.32 and SGLang 0.5.23 write them.

Everything about a stream that does not change from token to token is made once: an event is
`before` + text + `after`, so many events are one join of their tokens with `after + before`.
"""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"
_TEXT = "\x00text"
_REASON = '"finish_reason":null'

encode = msgspec.json.encode


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of a finished request."""

    prompt: int
    completion: int
    cached: int

    def body(self) -> dict[str, object]:
        """As both engines report it."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Shape(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which answer: dialect, chat or completion, and what its envelope says."""

    dialect: str
    chat: bool
    id: str
    created: int
    model: str

    def envelope(self, kind: str, choices: list[object]) -> dict[str, object]:
        """The outer object of an answer or an event."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    @property
    def stop_key(self) -> str:
        """What the dialect calls the reason behind finish_reason `stop`."""
        return "stop_reason" if self.dialect == "vllm" else "matched_stop"

    @property
    def event_kind(self) -> str:
        """The `object` of a streamed event."""
        return "chat.completion.chunk" if self.chat else "text_completion"


class Events(msgspec.Struct, frozen=True, gc=False):
    """A stream's preset bytes."""

    opening: bytes
    before: bytes
    after: bytes
    shape: Shape

    def tokens(self, pieces: list[bytes]) -> bytes:
        """One event for each piece of text."""
        return self.before + (self.after + self.before).join(pieces) + self.after

    def told(self, pieces: list[bytes], prompt_ids: list[int] | None) -> bytes:
        """One event for each piece of text, with its token ids; the prompt's go into the first."""
        events = []
        for piece in pieces:
            events.append(self.before + piece + _with_ids(self.after, piece, prompt_ids))
            prompt_ids = None
        return b"".join(events)

    def last(self, piece: bytes, reason: str) -> bytes:
        """The event of the last piece, with the finish reason where the dialect puts it."""
        if self.shape.chat and self.shape.dialect == "sglang":
            return self.before + piece + self.after + _sglang_chat_end(self.shape, reason)
        after = self.after.replace(_REASON.encode(), b'"finish_reason":"' + reason.encode() + b'"')
        return self.before + piece + after

    def told_last(self, piece: bytes, reason: str, prompt_ids: list[int] | None) -> bytes:
        """The event of the last piece, with its token ids."""
        return _with_ids(self.last(piece, reason), piece, prompt_ids)

    def usage(self, usage: Usage) -> bytes:
        """The event `stream_options.include_usage` asks for."""
        body = self.shape.envelope(self.shape.event_kind, [])
        body["usage"] = usage.body()
        return b"data: " + encode(body) + b"\n\n"


TOLD_WIDTH = 4
"""Bytes of a token where ids can be told: as many as an id of a prompt stands for."""


def _with_ids(event: bytes, piece: bytes, prompt_ids: list[int] | None) -> bytes:
    """An event, or its end, with ids behind everything else of its choice."""
    ids = [
        int.from_bytes(piece[at : at + TOLD_WIDTH], "little")
        for at in range(0, len(piece), TOLD_WIDTH)
    ]
    close = event.rindex(b"}]")
    told = b',"prompt_token_ids":%s,"token_ids":%s' % (encode(prompt_ids), encode(ids))
    return event[:close] + told + event[close:]


def events(shape: Shape) -> Events:
    """The preset bytes of a stream of this shape."""
    body = shape.envelope(shape.event_kind, [_choice(shape)])
    if not shape.chat and shape.dialect == "sglang":
        body["usage"] = None
    before, _, after = (b"data: " + encode(body) + b"\n\n").partition(encode(_TEXT)[1:-1])
    return Events(_opening(shape), before, after, shape)


def _choice(shape: Shape) -> dict[str, object]:
    sglang = shape.dialect == "sglang"
    if shape.chat:
        delta = {"reasoning_content": None, "content": _TEXT} if sglang else {"content": _TEXT}
        choice: dict[str, object] = {"index": 0, "delta": delta, "logprobs": None}
    else:
        choice = {"index": 0, "text": _TEXT, "logprobs": None}
    choice["finish_reason"] = None
    if sglang or not shape.chat:
        choice[shape.stop_key] = None
    return choice


def _opening(shape: Shape) -> bytes:
    if not shape.chat:
        return b""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return b"data: " + encode(shape.envelope(shape.event_kind, [choice])) + b"\n\n"


def _sglang_chat_end(shape: Shape, reason: str) -> bytes:
    choice = {
        "index": 0,
        "delta": {"reasoning_content": None},
        "logprobs": None,
        "finish_reason": reason,
        "matched_stop": None,
    }
    return b"data: " + encode(shape.envelope(shape.event_kind, [choice])) + b"\n\n"


def answer(shape: Shape, text: str, reason: str, usage: Usage) -> bytes:
    """The body of an answer that is not streamed."""
    choice: dict[str, object] = {"index": 0}
    if shape.chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": reason, shape.stop_key: None}
    body = shape.envelope("chat.completion" if shape.chat else "text_completion", [choice])
    body["usage"] = usage.body()
    return encode(body)


_NAMES = {400: "BadRequestError", 404: "NotFoundError", 413: "RequestEntityTooLarge"}


def error(dialect: str, status: int, message: str, param: str | None = None) -> bytes:
    """The body of an error: vLLM nests it, SGLang does not."""
    kind = _NAMES.get(status, "InternalServerError")
    body: dict[str, object] = {"message": message, "type": kind, "param": param, "code": status}
    return encode({"error": body} if dialect == "vllm" else {"object": "error", **body})


def error_event(status: int, message: str) -> bytes:
    """An error inside a stream; both engines write it the same way."""
    return b"data: " + error("vllm", status, message) + b"\n\n"
