"""What the client must know of a server before it sends load: model, context, bytes per token."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.client.bodies import PATHS, body
from infctl.errors import TargetError
from infctl.workload.model import Segment, WorkloadRequest

if TYPE_CHECKING:
    from infctl.client.exchange import Exchange
    from infctl.client.http import Pool
    from infctl.runs.spec import RunSpec

_ASK_S = 30.0
_PROBE_S = 120.0
_PROBE_TOKENS = 512
_FALLBACK_BYTES_PER_TOKEN = 4.0


class Facts(msgspec.Struct, frozen=True):
    """`context_tokens` None: the server doesn't say."""

    model: str
    context_tokens: int | None
    bytes_per_token: float


async def inspect(pool: Pool, spec: RunSpec) -> Facts:
    """Ask `/v1/models`, and measure the bytes per token. Raises TargetError."""
    model, context_tokens = await _model(pool, spec)
    ratio = spec.bytes_per_token or await _bytes_per_token(pool, spec, model)
    return Facts(model, context_tokens, ratio)


async def _model(pool: Pool, spec: RunSpec) -> tuple[str, int | None]:
    answer = await pool.fetch(pool.target.get("/v1/models"), min(_ASK_S, spec.timeout_s))
    if answer.status == 0:
        hint = "Is the server running, and is this its address?"
        raise TargetError(answer.error, where=spec.url, hint=hint)
    listed = _listed(answer)
    if answer.status != 200 and not spec.model:
        hint = "Wait until the server is ready, or name a model with --model."
        raise TargetError(f"/v1/models answers {_said(answer)}", where=spec.url, hint=hint)
    if not listed and not spec.model:
        hint = "Name a model with --model."
        raise TargetError("/v1/models lists no model", where=spec.url, hint=hint)
    if listed and spec.model and spec.model not in listed:
        names = ", ".join(list(listed)[:10])
        raise TargetError(
            f"serves no model {spec.model!r}", where=spec.url, hint=f"It serves: {names}."
        )
    model = spec.model or next(iter(listed))
    return model, listed.get(model)


def _listed(answer: Exchange) -> dict[str, int | None]:
    """Model ids with their context length, as far as the server tells."""
    value = answer.json() if answer.status == 200 else None
    rows = value.get("data") if isinstance(value, dict) else None
    found: dict[str, int | None] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            length = row.get("max_model_len")
            found[row["id"]] = length if isinstance(length, int) and length > 0 else None
    return found


async def _bytes_per_token(pool: Pool, spec: RunSpec, model: str) -> float:
    """Measured on text nobody sent before, as the prompts are made of; 4 where usage is absent."""
    segment = Segment(int.from_bytes(os.urandom(8), "big") >> 1, _PROBE_TOKENS)
    data = body(WorkloadRequest(0.0, (segment,), 1), model, spec.api, 1.0, stream=False)
    payload = pool.target.post(PATHS[spec.api], data)
    answer = await pool.fetch(payload, min(_PROBE_S, spec.timeout_s))
    if answer.error:
        hint = "A single small request fails; look at the server's log."
        raise TargetError(f"{PATHS[spec.api]} answers {_said(answer)}", where=spec.url, hint=hint)
    tokens = answer.usage().get("prompt_tokens")
    if not isinstance(tokens, int) or tokens <= 0:
        return _FALLBACK_BYTES_PER_TOKEN
    return round(_PROBE_TOKENS / tokens, 4)


def _said(answer: Exchange) -> str:
    value: Any = answer.json()
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return f"{answer.error or answer.status}: {message}"[:300] if message else answer.error
