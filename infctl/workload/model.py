"""One request of a workload, independent of any engine, clock or socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A run of prompt tokens. Equal `id`s are equal texts, so shared leading segments are a
    shared prefix; the text is a function of the id (and the length) alone."""

    id: int
    tokens: int


class WorkloadRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to send `at_s` seconds (at rate scale 1) after the start.

    `session` groups the turns of one conversation; empty where the source has none.
    """

    at_s: float
    prompt: tuple[Segment, ...]
    output_tokens: int
    session: str = ""

    @property
    def input_tokens(self) -> int:
        """Prompt length in tokens."""
        return sum(s.tokens for s in self.prompt)


@runtime_checkable
class Workload(Protocol):
    """A source of requests in order of arrival. Same seed, same requests."""

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """At most `limit` requests, sorted by `at_s`, the first at or after 0."""
        ...
