"""The sequences an engine decodes together: who finishes when, and what memory they will take.

A decoding sequence needs a new block every `block_size` steps. One counter per residue of the
step number therefore tells how many blocks any number of further steps takes, without a look at
the sequences.
"""

from __future__ import annotations

import heapq
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as SequenceOf


class Sequence:
    """A request inside an engine.

    `done` output tokens (as of the last batch change), `pending` tokens to prefill, `slots` KV
    slots held, of whose blocks the first `held` have a hash, `cached` prompt tokens hit at
    admission (−1 before it). While it decodes, `ticket` is set and tokens done are `offset` + the
    batch's steps.
    """

    __slots__ = (
        "aborted",
        "blocks",
        "cached",
        "done",
        "held",
        "id",
        "offset",
        "output_tokens",
        "pending",
        "prompt_tokens",
        "ready_ms",
        "slots",
        "ticket",
    )

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        blocks: SequenceOf[int],
        ready_ms: float,
    ) -> None:
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.ready_ms = ready_ms
        self.done = self.pending = self.slots = self.held = 0
        self.cached = -1
        self.offset = self.ticket = 0
        self.aborted = False

    @property
    def known(self) -> int:
        """Tokens of prompt and output so far."""
        return self.prompt_tokens + self.done


class DecodeBatch:
    """`size` sequences with `context` tokens in all, after `steps` decode steps."""

    __slots__ = ("_finishing", "_phases", "_tickets", "context", "size", "steps")

    def __init__(self, block_size: int) -> None:
        self.size = 0
        self.context = 0
        self.steps = 0
        self._tickets = 0
        self._finishing: list[tuple[int, int, Sequence]] = []
        self._phases = [0] * block_size

    def join(self, sequence: Sequence) -> None:
        """A prefilled sequence decodes from the next step on."""
        self._tickets += 1
        sequence.ticket = self._tickets
        sequence.offset = sequence.done - self.steps
        self.size += 1
        self.context += sequence.known
        self._phases[self._phase(sequence)] += 1
        last_step = sequence.output_tokens - sequence.offset
        heapq.heappush(self._finishing, (last_step, sequence.ticket, sequence))

    def leave(self, sequence: Sequence) -> None:
        """A decoding sequence stops; `done` and `slots` are brought up to date."""
        sequence.done = self.steps + sequence.offset
        sequence.slots = sequence.known - 1
        sequence.ticket = 0
        self.size -= 1
        self.context -= sequence.known
        self._phases[self._phase(sequence)] -= 1

    def advance(self, steps: int) -> None:
        """Every sequence gets `steps` more tokens."""
        self.steps += steps
        self.context += steps * self.size

    def finished(self) -> Iterator[Sequence]:
        """Sequences with all their tokens, in the order in which they joined."""
        finishing = self._finishing
        while finishing and finishing[0][0] <= self.steps:
            _, ticket, sequence = heapq.heappop(finishing)
            if sequence.ticket == ticket:
                yield sequence

    def steps_to_finish(self) -> int:
        """Steps until the first sequence is done; the batch is not empty."""
        finishing = self._finishing
        while finishing[0][1] != finishing[0][2].ticket:
            heapq.heappop(finishing)
        return finishing[0][0] - self.steps

    def growth(self, steps: int) -> int:
        """Blocks that `steps` more steps take."""
        phases, size = self._phases, len(self._phases)
        start = self.steps % size
        if steps == 1:
            return phases[start]
        rounds, rest = divmod(steps, size)
        end = start + rest
        if end <= size:
            part = sum(phases[start:end])
        else:
            part = sum(phases[start:]) + sum(phases[: end - size])
        return rounds * self.size + part

    def steps_within(self, steps: int, blocks: int) -> int:
        """How many of `steps` steps fit into `blocks` more blocks."""
        size = len(self._phases)
        if (steps // size + 1) * self.size <= blocks or self.growth(steps) <= blocks:
            return steps
        phases, start = self._phases, self.steps
        needs = accumulate(phases[(start + i) % size] for i in range(steps))
        return next(i for i, need in enumerate(needs) if need > blocks)

    def _phase(self, sequence: Sequence) -> int:
        """Residue of the steps at which a sequence starts a new block."""
        return (1 - sequence.prompt_tokens - sequence.offset) % len(self._phases)
