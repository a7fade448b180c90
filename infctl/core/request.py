"""A request as the scheduler sees it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What a pool's units do."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class Request(msgspec.Struct, gc=False, omit_defaults=True):
    """One client request, reduced to what decisions need. `id` is the router's own and unique,
    `name` the id the client knows, which need not be.

    `prompt_bytes` is the length of the prompt's text as sent, `extra_tokens` an estimate for what
    is not text (image and audio parts); only `plain_text` prompts teach how many bytes a token
    takes. A request that does not `stream` never shows when its prefill ended. `tenant` is who it
    is counted for, `priority` the index of its class (0 is the most urgent), `patience_s` how long
    the client is ready to wait for its turn (0: as long as the router allows), `body_bytes` what
    keeping the request takes. `follows` is the id of a response it goes on from, `pinned_to` the
    endpoint (id and generation) that keeps that one, so that no other can serve it. `tokens` is how
    many the prompt has, 0 while nobody has counted; with `token_blocks` its `blocks` are hashes of
    token ids (four bytes each) and not of text. `blocks` are the prompt's chained hashes
    (core.prefix), empty without a prompt. `prompt_tokens` is filled in by the Director, which knows
    how many bytes a token of this model takes, and so is `output_tokens`, what answers of this
    model usually take, at most `max_tokens`. `max_tokens` 0: the client set none.
    """

    id: str
    model: str
    name: str = ""
    prompt_bytes: int = 0
    extra_tokens: int = 0
    max_tokens: int = 0
    tokens: int = 0
    token_blocks: bool = False
    blocks: list[int] = msgspec.field(default_factory=list)
    session: str = ""
    stream: bool = False
    plain_text: bool = True
    tenant: str = ""
    priority: int = 0
    patience_s: float = 0.0
    body_bytes: int = 0
    follows: str = ""
    pinned_to: tuple[str, int] | None = None
    role: Role = Role.UNIFIED
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
