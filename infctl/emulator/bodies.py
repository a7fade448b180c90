"""Request bodies of the completion endpoints, read as strictly as the engines read them."""

from __future__ import annotations

from typing import Any

import msgspec

from infctl.emulator import prompt
from infctl.emulator.prompt import Prompt


class BadRequest(Exception):
    """The engine's 4xx: a message, the parameter at fault and the status."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of a request."""

    include_usage: bool = False


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content; all but `text` is opaque."""

    type: str = ""
    text: str = ""


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str | list[Part] | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of both endpoints that an emulated engine honours; others are ignored."""

    model: str | None = None
    prompt: str | list[str | int | list[int]] | None = None
    messages: list[Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    n: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    cache_salt: str | None = None
    rid: str | None = None
    return_token_ids: bool = False

    @property
    def limit(self) -> int | None:
        """How many tokens the client asked for. Raises BadRequest below one."""
        for name in ("max_completion_tokens", "max_tokens"):
            value: int | None = getattr(self, name)
            if value is not None:
                if value < 1:
                    raise BadRequest(
                        f"{name} must be at least 1, got {value}. "
                        f"(parameter={name}, value={value})",
                        name,
                    )
                return value
        return None


_decoder = msgspec.json.Decoder(Body)


def parse(body: bytes, *, chat: bool) -> Body:
    """A request body. Raises BadRequest."""
    try:
        parsed = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"1 validation error:\n  {error}") from None
    if parsed.n is not None and parsed.n != 1:
        raise BadRequest("an emulated engine generates one choice: n must be 1", "n")
    if chat and parsed.continue_final_message and parsed.add_generation_prompt:
        raise BadRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    return parsed


def prompt_of(body: Body, *, chat: bool, bytes_per_token: int) -> Prompt:
    """The prompt of a body. Raises BadRequest when there is none."""
    salt = body.cache_salt or ""
    if chat:
        if not body.messages:
            raise BadRequest("messages must not be empty", "messages")
        return prompt.from_text(render(body), bytes_per_token, salt)
    made = _completion_prompt(body.prompt, bytes_per_token, salt)
    if not made.data:
        raise BadRequest(
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "prompt",
        )
    return made


def _completion_prompt(value: Any, bytes_per_token: int, salt: str) -> Prompt:
    if isinstance(value, list) and value and not isinstance(value[0], int):
        if len(value) > 1:
            raise BadRequest("an emulated engine takes one prompt a request", "prompt")
        value = value[0]
    if isinstance(value, str):
        return prompt.from_text(value, bytes_per_token, salt)
    try:
        return prompt.from_ids(value or [], salt)
    except ValueError as error:
        raise BadRequest(str(error), "prompt") from None


def render(body: Body) -> str:
    """Messages as one text; a message to continue ends it as its own generation would."""
    messages = body.messages or []
    parts = [f"<|{m.role}|>\n{_content(m)}<|end|>\n" for m in messages]
    if body.continue_final_message:
        parts[-1] = parts[-1].removesuffix("<|end|>\n")
    elif body.add_generation_prompt:
        parts.append("<|assistant|>\n")
    return "".join(parts)


def _content(message: Message) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if part.type == "text" else f"<|{part.type}|>" for part in content)
