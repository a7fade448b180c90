"""What the core asks its driver to do."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Dispatch(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag=True
):
    """Send the request to this endpoint; `attempt` counts from 1.

    `cached_tokens` is what the decision expects the endpoint's cache to hold of the prompt,
    `queue_ms` how long the request waited at the router before this attempt. `hedge_after_s`: when
    to say that its first byte is overdue; 0 for never.
    """

    request_id: str
    slot: int
    attempt: int = 1
    cached_tokens: int = 0
    queue_ms: float = 0.0
    hedge_after_s: float = 0.0


class Hedge(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag=True):
    """Send a request whose first byte is overdue to this endpoint as well."""

    request_id: str
    slot: int
    attempt: int = 1
    cached_tokens: int = 0


class Shed(StrEnum):
    """Why flow control turned a request away."""

    FULL = "full"
    DISPLACED = "displaced"
    DEADLINE = "deadline"
    UNREADY = "unready"


class Reject(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag=True):
    """Answer the client with an error; `queue_ms` after waiting so long at the router, `shed`
    where flow control is the reason."""

    request_id: str
    status: int
    message: str
    retry_after_s: int | None = None
    queue_ms: float = 0.0
    shed: Shed | None = None


class Abort(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Cancel the request at the endpoint that works on it."""

    request_id: str
    slot: int


Command = Dispatch | Hedge | Reject | Abort
