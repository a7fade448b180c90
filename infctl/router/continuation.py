"""Going on with an answer on another engine, from exactly what the client has.

`Sofar` is what of an answer is out; `body` makes of it and the client's request the request that
generates the rest and nothing else; `Joint` makes the rest's events look like the same stream's.
What cannot be continued without changing the answer raises Unsafe, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPLETIONS = b"/v1/completions"
CHAT = b"/v1/chat/completions"

_COMPLETION_TOKENS = 16
"""What both engines generate for /v1/completions when the client names no limit."""

_LIMITS = ("max_completion_tokens", "max_tokens")

_UNSAFE_FIELDS = {
    "echo": "the prompt is echoed in the answer",
    "suffix": "text is inserted before a suffix",
    "use_beam_search": "beam search keeps several answers",
    "logprobs": "log probabilities were asked for",
    "top_logprobs": "log probabilities were asked for",
    "prompt_logprobs": "log probabilities were asked for",
    "presence_penalty": "a presence penalty counts what was generated",
    "frequency_penalty": "a frequency penalty counts what was generated",
    "guided_json": "decoding is guided",
    "guided_regex": "decoding is guided",
    "guided_choice": "decoding is guided",
    "guided_grammar": "decoding is guided",
    "structured_outputs": "decoding is guided",
    "json_schema": "decoding is guided",
    "regex": "decoding is guided",
    "ebnf": "decoding is guided",
    "structural_tag": "decoding is guided",
}


class Unsafe(Exception):
    """This answer cannot be continued without changing it; says why."""


class Sofar(msgspec.Struct):
    """What of an answer the client has: `text`, and its `first` event.

    `ids` are the tokens that make up the text, but for the `overlap` at its end, None where the
    engine does not tell (`prompt_ids` likewise); `tokens` is their number. Where a part of the
    text came without ids (`untold`), it counts events with text, and several tokens may share one.
    `finished`, `counted` and `done`: its finish reason, its usage, its end are out.
    """

    first: dict[str, Any] | None = None
    text: str = ""
    tokens: int = 0
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    overlap: str = ""
    finished: bool = False
    counted: bool = False
    done: bool = False
    _held: list[int] = msgspec.field(default_factory=list)
    untold: bool = False

    def take(self, events: bytes) -> None:
        """Take in whole events as an engine sent them. Raises Unsafe."""
        for event in split(events):
            if event == b"[DONE]":
                self.done = True
                return
            found = decode(event)
            if not self._take(found):
                return
            self.first = self.first or found

    def _take(self, event: dict[str, Any]) -> bool:
        """False for an event by which the engine gave up, which the client never got."""
        if event.get("error"):
            return False
        choices = event.get("choices")
        if not choices and not event.get("usage"):
            raise Unsafe("the stream holds an event of an unknown kind")
        self.counted = self.counted or not choices
        for choice in choices or ():
            if choice.get("finish_reason") == "abort":
                return False
            if choice.get("index"):
                raise Unsafe("the answer has several choices")
            if choice.get("logprobs"):
                raise Unsafe("log probabilities were streamed")
            self._add(_text(choice), choice.get("token_ids"))
            told = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
            self.prompt_ids = self.prompt_ids or told  # a later engine's hold what was out already
            self.finished = self.finished or choice.get("finish_reason") is not None
        return True

    def _add(self, text: str, ids: list[int] | None) -> None:
        """Tokens whose text is held back (half a character, perhaps a stop string) are not out
        yet: whoever goes on must generate them again."""
        if ids:
            self._held += ids
        if not text:
            return
        again = min(len(self.overlap), len(text))
        self.overlap = self.overlap[again:]
        self.text += text[again:]
        self.tokens += len(self._held) or 1
        self.untold = self.untold or not self._held
        self.ids = None if self.untold else [*(self.ids or ()), *self._held]
        self._held = []


def split(events: bytes) -> Iterator[bytes]:
    """The data of each event."""
    for line in events.splitlines():
        if line.startswith(b"data:"):
            yield line[5:].strip()


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    """What is read of an event, and must be of these types."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


class _Request(msgspec.Struct):
    """What is read of a request, and must be of these types."""

    messages: list[Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    stop: str | list[str] | None = None


def decode(event: bytes) -> dict[str, Any]:
    """One event's object. Raises Unsafe."""
    return _decoded(event, _Event, "the stream holds an event")


def decode_request(body: bytes | bytearray) -> dict[str, Any]:
    """A request's object. Raises Unsafe."""
    return _decoded(body, _Request, "the request is something")


def _decoded(data: bytes | bytearray, shape: type[msgspec.Struct], what: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(data)
        msgspec.convert(found, shape)
    except msgspec.ValidationError:
        raise Unsafe(f"{what} of another shape than expected") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unsafe(f"{what} that is not JSON") from None
    return found


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        return str(choice.get("text") or "")
    if delta.get("tool_calls") or delta.get("function_call"):
        raise Unsafe("a tool call is in progress")
    if delta.get("reasoning_content") or delta.get("reasoning"):
        raise Unsafe("reasoning was streamed, which no template takes back")
    return str(delta.get("content") or "")


def check(body: dict[str, Any], sofar: Sofar) -> None:
    """Raises Unsafe where the rest would not be what one engine would have said."""
    for name, reason in _UNSAFE_FIELDS.items():
        if body.get(name):
            raise Unsafe(reason)
    if (body.get("n") or 1) != 1 or (body.get("best_of") or 1) != 1:
        raise Unsafe("several choices were asked for")
    if (body.get("response_format") or {}).get("type", "text") != "text":
        raise Unsafe("decoding is guided")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise Unsafe("decoding is guided to a tool call")
    if body.get("seed") is not None and body.get("temperature") != 0 and sofar.tokens:
        raise Unsafe("a seed asks for one sequence of random numbers")
    stops = body.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        if any(sofar.text.endswith(stop[:size]) for size in range(1, len(stop))):
            raise Unsafe("a stop string is about to match")


def room(body: dict[str, Any], chat: bool, sofar: Sofar) -> int | None:
    """Tokens that may still be generated; None where only the context limits them."""
    for name in _LIMITS:
        if body.get(name) is not None:
            return int(body[name]) - sofar.tokens
    return None if chat else _COMPLETION_TOKENS - sofar.tokens


def body(request: dict[str, Any], chat: bool, sofar: Sofar, exact: bool) -> dict[str, Any]:
    """The request that generates the rest. `exact`: `sofar.ids` may stand for its text.

    Raises Unsafe where the prompt cannot be extended.
    """
    made = dict(request)
    left = room(request, chat, sofar)
    if left is not None:
        for name in [n for n in _LIMITS if request.get(n) is not None] or ["max_tokens"]:
            made[name] = left
    if request.get("min_tokens"):
        made["min_tokens"] = max(int(request["min_tokens"]) - sofar.tokens, 0)
    if not sofar.text:
        return made
    if chat:
        made["messages"] = _messages(request, sofar.text)
        made |= {"continue_final_message": True, "add_generation_prompt": False}
    else:
        made["prompt"] = _prompt(request.get("prompt"), sofar, exact)
    return made


def _messages(request: dict[str, Any], text: str) -> list[Any]:
    messages = list(request.get("messages") or ())
    if not request.get("continue_final_message"):
        return [*messages, {"role": "assistant", "content": text}]
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        raise Unsafe("the message to continue is not plain text")
    return [*messages[:-1], last | {"content": last["content"] + text}]


def _prompt(prompt: Any, sofar: Sofar, exact: bool) -> Any:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    is_ids = isinstance(prompt, list) and all(isinstance(i, int) for i in prompt)
    if exact and sofar.ids is not None:
        known = prompt if is_ids else sofar.prompt_ids
        if known:
            return [*known, *sofar.ids]
    if not isinstance(prompt, str):
        raise Unsafe("the prompt is not one text, and the engine did not tell the tokens")
    return prompt + sofar.text


class Joint:
    """Events of the engine that goes on, made the same stream's: its id and time, usage of the
    whole, nothing said twice. `wants_usage`: whether the client asked for it."""

    def __init__(self, sofar: Sofar, wants_usage: bool) -> None:
        self._sofar = sofar
        self._before = sofar.tokens
        self._overlap = sofar.overlap
        self._wants_usage = wants_usage
        self.usage: dict[str, Any] | None = None

    def join(self, events: bytes) -> bytes:
        """Whole events in, whole events out. Raises Unsafe on what is no event."""
        return b"".join(self._rewritten(split(events)))

    def _rewritten(self, events: Iterable[bytes]) -> Iterator[bytes]:
        for event in events:
            if event == b"[DONE]":
                yield b"data: [DONE]\n\n"
                continue
            found = self._rewrite(decode(event))
            if found is not None:
                yield b"data: " + msgspec.json.encode(found) + b"\n\n"

    def _rewrite(self, event: dict[str, Any]) -> dict[str, Any] | None:
        first = self._sofar.first
        if first is not None:
            event |= {k: first[k] for k in ("id", "created", "model") if k in first}
        event.pop("prompt_token_ids", None)
        if event.get("usage"):
            event["usage"] = self.usage = self._summed(event["usage"])
        choices = event.get("choices") or []
        if not choices and event.get("usage") and not self._wants_usage:
            return None
        for choice in choices:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
            if self._overlap and choice.get("text"):
                choice["text"] = self._new(choice["text"])
        return None if first is not None and choices and _says_nothing(choices) else event

    def _new(self, text: str) -> str:
        """Text without what of it is out already: a token may end within a character."""
        size = min(len(text), len(self._overlap))
        if text[:size] != self._overlap[:size]:
            raise Unsafe("the engine that was to go on says something else")
        self._overlap = self._overlap[size:]
        return text[size:]

    def _summed(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The second engine saw what was generated before as a part of its prompt."""
        before = self._before
        prompt = max(int(usage.get("prompt_tokens") or 0) - before, 0)
        found = usage | {
            "prompt_tokens": prompt,
            "completion_tokens": int(usage.get("completion_tokens") or 0) + before,
        }
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            cached = min(int(details["cached_tokens"]), prompt)
            found["prompt_tokens_details"] = details | {"cached_tokens": cached}
        return found


def _says_nothing(choices: list[dict[str, Any]]) -> bool:
    """The role, which opened the stream already. Takes the role out of what says more."""
    nothing = True
    for choice in choices:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            role = delta.pop("role", None)
            nothing = nothing and role is not None and not delta.get("content")
        else:
            nothing = False
        nothing = nothing and choice.get("finish_reason") is None
    return nothing


def ending(sofar: Sofar, chat: bool, wants_usage: bool) -> bytes:
    """The last events of an answer that is complete but for them: every token is out."""
    if sofar.done:
        return b""
    envelope = {k: v for k, v in (sofar.first or {}).items() if k in _ENVELOPE}
    events = []
    if not sofar.finished:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
        choice["delta" if chat else "text"] = {} if chat else ""
        events.append(envelope | {"choices": [choice]})
    if wants_usage and sofar.prompt_ids and not sofar.counted:
        prompt = len(sofar.prompt_ids)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": sofar.tokens,
            "total_tokens": prompt + sofar.tokens,
        }
        events.append(envelope | {"choices": [], "usage": usage})
    made = b"".join(b"data: " + msgspec.json.encode(e) + b"\n\n" for e in events)
    return made + b"data: [DONE]\n\n"


_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint")
