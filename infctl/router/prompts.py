"""The prompt that an engine makes of a request's body, as text or as tokens."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.router.continuation import CHAT

if TYPE_CHECKING:
    from infctl.router.tokenizer import ModelTokenizer

NOTHING = (b"", b"")


class Unusable(Exception):
    """The prompt cannot be told for certain; the request goes by its text."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt: `ids` where the client sent tokens (four bytes each), else `text`, `around` which
    go the tokens that a tokenizer puts before and behind. `salt` keeps caches apart."""

    text: str
    ids: bytes | None
    around: tuple[bytes, bytes]
    salt: str


class _Body(msgspec.Struct, gc=False):
    """What decides about the prompt."""

    prompt: Any = None
    messages: Any = None
    tools: Any = None
    documents: Any = None
    reasoning_effort: Any = None
    add_generation_prompt: Any = True
    add_special_tokens: Any = None
    chat_template_kwargs: Any = None
    cache_salt: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    truncate_prompt_tokens: Any = None
    prompt_embeds: Any = None
    mm_processor_kwargs: Any = None
    suffix: Any = None


_decode = msgspec.json.Decoder(_Body).decode
_UNKNOWN = (
    "chat_template", "continue_final_message", "truncate_prompt_tokens", "prompt_embeds",
    "mm_processor_kwargs", "suffix",
)  # fmt: skip
"""Fields with which engines make another prompt than the one described here."""


def prompt_of(tokenizer: ModelTokenizer, path: bytes, body: bytes) -> Prompt:
    """The prompt of a request. Raises Unusable, or what a hostile body makes parsers raise."""
    parsed = _decode(body)
    if any(getattr(parsed, name) for name in _UNKNOWN):
        raise Unusable("the request changes how its prompt is made")
    salt = str(parsed.cache_salt or "")
    if path == CHAT:
        around = _around(tokenizer, parsed, default=False)
        return Prompt(_conversation(tokenizer, parsed), None, around, salt)
    prompt = parsed.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Prompt(prompt, None, _around(tokenizer, parsed, default=True), salt)
    if isinstance(prompt, list) and prompt:
        return Prompt("", array("I", prompt).tobytes(), NOTHING, salt)
    raise Unusable("several prompts, or none")


def _around(tokenizer: ModelTokenizer, parsed: _Body, default: bool) -> tuple[bytes, bytes]:
    adds = default if parsed.add_special_tokens is None else bool(parsed.add_special_tokens)
    return (tokenizer.begin, tokenizer.end) if adds else NOTHING


def _conversation(tokenizer: ModelTokenizer, parsed: _Body) -> str:
    template = tokenizer.tool_template if parsed.tools else tokenizer.template
    if template is None:
        raise Unusable("the model has no chat template")
    options = dict(parsed.chat_template_kwargs or {})
    options["add_generation_prompt"] = parsed.add_generation_prompt
    if parsed.documents is not None:
        options["documents"] = parsed.documents
    if parsed.reasoning_effort is not None:
        options["reasoning_effort"] = parsed.reasoning_effort
        options.setdefault("enable_thinking", parsed.reasoning_effort != "none")
    return template.render(parsed.messages, parsed.tools, options)
