"""What the core asks its driver to do."""

from __future__ import annotations

import msgspec


class Dispatch(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Send the request to this endpoint; `attempt` counts from 1.

    `cached_tokens` is what the decision expects the endpoint's cache to hold of the prompt.
    """

    request_id: str
    slot: int
    attempt: int = 1
    cached_tokens: int = 0


class Reject(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Answer the client with an error."""

    request_id: str
    status: int
    message: str
    retry_after_s: int | None = None


class Abort(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Cancel the request at the endpoint that works on it."""

    request_id: str
    slot: int


Command = Dispatch | Reject | Abort
