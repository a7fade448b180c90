"""What happened. Drivers turn sockets, probes and timers into these; `Director.handle` takes them.

There is no event per streamed chunk: drivers count, and report progress at the first byte and at
the end.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from infctl.core.fleet import Endpoint, Load, State
from infctl.core.request import Request


class RequestArrived(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """A client's request has been read and parsed."""

    request: Request


class FirstByte(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """The endpoint began to answer with its first token: prefill is over."""

    request_id: str


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What the engine said it did. None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class RequestFinished(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """The answer is complete; `ok` is False for a status outside 2xx or an error in the stream.

    `usage` is None where the engine reported none.
    """

    request_id: str
    ok: bool
    usage: Usage | None = None


class RequestCancelled(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """The client left."""

    request_id: str


class LegFailed(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """An endpoint failed a request before (`started` False) or after the client had a part of the
    answer; `resumable` when another endpoint may go on from there. It has to compute the
    `answered_tokens` that the client got since the request began or last failed, too."""

    request_id: str
    reason: str
    started: bool = False
    resumable: bool = False
    answered_tokens: int = 0


class FirstByteOverdue(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """A stream's first byte is late by what its Dispatch said."""

    request_id: str


class HedgeSettled(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Of two endpoints that worked on a request one is left; `won`: the second."""

    request_id: str
    won: bool


class Tokenised(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """A prompt's tokens became known only after its request had arrived: how many there are, and
    the hashes of their ids in blocks."""

    request_id: str
    tokens: int
    blocks: list[int]


class EndpointJoined(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Discovery found an endpoint; it takes traffic once its state is ready."""

    endpoint: Endpoint
    state: State = State.STARTING


class EndpointLeft(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Discovery lost an endpoint."""

    endpoint_id: str


class EndpointChanged(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """A probe, a failure or an operator moved an endpoint to another state."""

    endpoint_id: str
    state: State


class LoadReported(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """A metrics scrape, or None where the endpoint gives none any more."""

    endpoint_id: str
    load: Load | None


class PeersReported(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """What the other workers of this router have open: one row per column of core.fleet.SHARED,
    one cell per slot. Only where the Director has an OwnLoad."""

    loads: NDArray[np.float64]


class PrefixesReported(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Other workers' news of prefixes: (slot, blocks, held). The slot holds these blocks now, or,
    where `held` is False, it was believed to and does not. Deepest first, as a ring has them."""

    news: list[tuple[int, list[int], bool]]


class Tick(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag=True):
    """Time has passed: deadlines may be over. Drivers send one about once a second."""


Event = (
    RequestArrived
    | FirstByte
    | RequestFinished
    | RequestCancelled
    | LegFailed
    | FirstByteOverdue
    | HedgeSettled
    | Tokenised
    | EndpointJoined
    | EndpointLeft
    | EndpointChanged
    | LoadReported
    | PeersReported
    | PrefixesReported
    | Tick
)
