"""What routers and engines hash of a prompt, from its segments alone: no text is ever made.

Equal segment ids are equal text, so the hashes of two prompts are equal exactly where their texts
would be: block i is the chain of what lies before it and the (segment, offset, length) pieces that
make it up.
"""

from __future__ import annotations

from functools import reduce
from itertools import islice, pairwise
from math import gcd
from typing import TYPE_CHECKING

from infctl.core.prefix import BLOCK_ENDS, GRADES, block_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from infctl.workload.model import Segment, WorkloadRequest

BYTES_PER_TOKEN = 4
"""As the load generator's text has on an emulated engine."""

_SHARE = 64
"""Hash as finely as a 64th of the mean prompt, where segments do not say how finely is exact."""

_LOOKED_AT = 2000
_BLOCK_MASK = 0xFFFF_FFFF_FFFF_FFFC


def router_blocks(prompt: Sequence[Segment], seed: int) -> list[int]:
    """Stand-ins for core.prefix.block_hashes of the prompt's text: as many, of the same grades."""
    size = sum(s.tokens for s in prompt) * BYTES_PER_TOKEN
    count = block_count(size)
    ends = BLOCK_ENDS[:count]
    chains = _chains(prompt, ends, seed, BYTES_PER_TOKEN)
    return [chain & _BLOCK_MASK | grade for chain, grade in zip(chains, GRADES, strict=False)]


def engine_blocks(request: WorkloadRequest, block_tokens: int, own: int) -> list[int]:
    """One hash per whole block of the prompt and its answer; `own` tells the request's answer from
    any other text."""
    prompt = request.prompt
    total = sum(s.tokens for s in prompt)
    whole = total // block_tokens
    hashes = _whole_segments(prompt, block_tokens)
    if hashes is None:
        ends = range(block_tokens, whole * block_tokens + 1, block_tokens)
        hashes = list(_chains(prompt, ends, 0, 1))
    answered = (total + request.output_tokens) // block_tokens
    chain = hashes[-1] if hashes else 0
    hashes += [hash((chain, own, index)) for index in range(answered - whole)]
    return hashes


def _whole_segments(prompt: Sequence[Segment], block_tokens: int) -> list[int] | None:
    """The same where every segment but the last is one block, as in traces of blocks."""
    chain = 0
    hashes: list[int] = []
    for segment in prompt:
        if segment.tokens != block_tokens:
            return hashes if segment is prompt[-1] and segment.tokens < block_tokens else None
        chain = hash((chain, segment.id))
        hashes.append(chain)
    return hashes


def _chains(prompt: Sequence[Segment], ends: Sequence[int], seed: int, scale: int) -> Iterator[int]:
    """One chained hash up to each of the ascending `ends`, in units of 1/`scale` tokens."""
    pieces = iter(prompt)
    segment = next(pieces, None)
    begun, chain, start = 0, seed, 0
    for end in ends:
        while segment is not None and begun + segment.tokens * scale < end:
            stop = begun + segment.tokens * scale
            chain = hash((chain, segment.id, start - begun, stop - begun))
            start = begun = stop
            segment = next(pieces, None)
        assert segment is not None
        chain = hash((chain, segment.id, start - begun, end - begun))
        start = end
        yield chain


def hash_blocks(requests: Iterable[WorkloadRequest], block_size: int) -> int:
    """How many engine blocks one hash may stand for: as many as prefixes are whole multiples of,
    else few enough to lose little more than a hundredth of a prompt."""
    common, tokens, count = 0, 0, 0
    for request in islice(requests, _LOOKED_AT):
        common = reduce(gcd, (a.tokens for a, _ in pairwise(request.prompt)), common)
        tokens += request.input_tokens
        count += 1
    mean = tokens // max(count, 1)
    fine = max(mean // _SHARE // block_size, 1)
    if common and common % block_size == 0:
        return max(common // block_size, fine)
    return fine
