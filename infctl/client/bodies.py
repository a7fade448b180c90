"""Request bodies as bytes, joined rather than encoded: prompts need no escaping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.workload.text import render_bytes

if TYPE_CHECKING:
    from infctl.runs.spec import Api
    from infctl.workload.model import WorkloadRequest

PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_OPEN: dict[Api, bytes] = {
    "completions": b',"prompt":"',
    "chat": b',"messages":[{"role":"user","content":"',
}
_CLOSE: dict[Api, bytes] = {"completions": b'"', "chat": b'"}]'}
_STREAM = (
    b',"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}'
)
_WHOLE = b',"temperature":0}'


def body(
    request: WorkloadRequest, model: str, api: Api, bytes_per_token: float, stream: bool = True
) -> bytes:
    """The JSON body of a completion or chat request for exactly its output tokens."""
    return b"".join(
        (
            b'{"model":',
            msgspec.json.encode(model),
            _OPEN[api],
            render_bytes(request, bytes_per_token),
            _CLOSE[api],
            b',"max_tokens":%d' % request.output_tokens,
            _STREAM if stream else _WHOLE,
        )
    )
