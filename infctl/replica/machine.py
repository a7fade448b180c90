"""One engine in time: continuous batching, chunked prefill, paged KV, preemption.

Theory. An engine runs steps. While nothing joins or leaves a batch of B sequences with S tokens
of context, decode step j takes decode_step(B, S) + dk·B·j ms, and a stretch of such steps has a
closed form (infctl.replica.stretch). Hence the machine moves from one *batch change* to the next:
the end of a step that prefills, the first finishing sequence, memory running out, or the step
boundary after an arrival or an abort. Nothing is settled in between, so how often it is asked
changes no result. A step that prefills chunks takes decode_step + interference · prefill.

`ttft_overhead_ms` passes between a request's arrival and its entering the queue, so it delays
tokens without occupying the engine. Prompts get all their memory on admission.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from infctl.replica.batch import DecodeBatch, Sequence
from infctl.replica.kvcache import KvCache
from infctl.replica.stretch import Stretch

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf

    from infctl.timing import TimingModel


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's limits. `kv_capacity_tokens` 0 takes the timing model's capacity. A request's
    hashes stand for `hash_blocks` blocks each."""

    block_size: int = 16
    hash_blocks: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_capacity_tokens: int = 0
    prefix_caching: bool = True
    record_events: bool = False


class ReplicaRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to run: exactly `output_tokens` tokens after `prompt_tokens`.

    `blocks` holds one chained hash per full block (or run of `hash_blocks`), from the start of the
    prompt. It may go on into the output; those blocks become reusable once the request has ended.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    blocks: SequenceOf[int] = ()


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    """A request's first token is out; `cached_tokens` of its prompt were not computed."""

    id: str
    at_ms: float
    cached_tokens: int


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """A preempted request was recomputed and has its next token."""

    id: str
    at_ms: float


class Preempted(msgspec.Struct, frozen=True, gc=False):
    """Memory ran out: the request went back to the head of the queue with `tokens` done."""

    id: str
    at_ms: float
    tokens: int


class Finished(msgspec.Struct, frozen=True, gc=False):
    """All `tokens` of a request are out and its memory is free."""

    id: str
    at_ms: float
    tokens: int


Happening = FirstToken | Resumed | Preempted | Finished


class ReplicaLoad(msgspec.Struct, frozen=True, gc=False):
    """A replica's gauges and totals. `waiting` leaves out requests not yet in the queue."""

    running: int
    waiting: int
    kv_usage: float
    prompt_tokens_total: int
    generation_tokens_total: int
    cached_tokens_total: int
    preemptions_total: int


class Replica:
    """An engine as a machine over virtual time in ms. Times never run backwards."""

    def __init__(self, timing: TimingModel, options: ReplicaOptions | None = None) -> None:
        options = options or ReplicaOptions()
        _check(timing, options)
        self.timing = timing
        self.options = options
        capacity = options.kv_capacity_tokens or timing.kv_capacity_tokens
        self.cache = KvCache(
            capacity // options.block_size,
            weight=options.hash_blocks,
            record=options.record_events,
        )
        self._hash_tokens = options.block_size * options.hash_blocks
        self._all: dict[str, Sequence] = {}
        self._arriving: deque[Sequence] = deque()
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._batch = DecodeBatch(options.block_size)  # the running ones that decode
        self._prefilling: Sequence | None = None  # the running one with more than one chunk
        self._chunks: list[tuple[Sequence, int]] = []  # what the current step prefills
        self._stretch: Stretch | None = None
        self._now_ms = 0.0  # how far it was advanced
        self._changed_ms = 0.0  # the last batch change
        self._prompt_total = self._generated_total = self._cached_total = self._preempted = 0

    def submit(self, request: ReplicaRequest, now_ms: float) -> None:
        """Take a request in; the caller has advanced to `now_ms`, or a little beyond.

        Raises ValueError for a taken id, an empty prompt, no output, or a request that memory
        can never hold.
        """
        total = request.prompt_tokens + request.output_tokens
        if request.id in self._all:
            raise ValueError(f"request {request.id!r} is here already")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one token of prompt and of output")
        if total > self.cache.capacity * self.options.block_size:
            raise ValueError(f"{total} tokens never fit into the KV cache")
        sequence = Sequence(
            request.id,
            request.prompt_tokens,
            request.output_tokens,
            request.blocks if self.options.prefix_caching else (),
            max(now_ms, self._changed_ms) + self.timing.ttft_overhead_ms,
        )
        self._all[request.id] = sequence
        self._arriving.append(sequence)
        if len(self._arriving) == 1 and self._joinable():
            self._interrupt(sequence.ready_ms)

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Drop a request; a running one leaves at the next step boundary. False if unknown."""
        sequence = self._all.pop(request_id, None)
        if sequence is None:
            return False
        sequence.aborted = True
        if request_id not in self._running:
            queue = self._waiting if sequence in self._waiting else self._arriving
            queue.remove(sequence)
        self._interrupt(now_ms)
        return True

    def next_change_ms(self) -> float | None:
        """When something next happens by itself, or None when it never will."""
        if self._stretch is not None:
            return self._stretch.end_ms
        return self._arriving[0].ready_ms if self._arriving else None

    def advance(self, now_ms: float) -> list[Happening]:
        """Run up to and including `now_ms`; what happened, in order."""
        happenings: list[Happening] = []
        while (at_ms := self.next_change_ms()) is not None and at_ms <= now_ms:
            if self._stretch is not None:
                self._end_stretch(self._stretch, happenings)
            self._schedule(at_ms, happenings)
            self._changed_ms = at_ms
        self._now_ms = max(self._now_ms, now_ms)
        return happenings

    def steps_done(self, now_ms: float) -> int:
        """Decode steps since the start; each gives every decoding sequence one token."""
        if self._stretch is None or self._chunks:
            return self._batch.steps
        return self._batch.steps + self._stretch.whole_steps(now_ms)

    def next_step_ms(self, now_ms: float) -> float | None:
        """When the step under way at `now_ms` ends, or None when idle."""
        if self._stretch is None:
            return None
        return self._stretch.boundary_ms(self._stretch.whole_steps(now_ms) + 1)

    def tokens_done(self, request_id: str, now_ms: float) -> int:
        """Output tokens of a request so far; 0 for an unknown one."""
        sequence = self._all.get(request_id)
        if sequence is None:
            return 0
        return self.steps_done(now_ms) + sequence.offset if sequence.ticket else sequence.done

    def offset(self, request_id: str) -> int | None:
        """Tokens done minus `steps_done`: constant while a request decodes, None otherwise."""
        sequence = self._all.get(request_id)
        return sequence.offset if sequence is not None and sequence.ticket else None

    def load(self, now_ms: float) -> ReplicaLoad:
        """Gauges and totals as of `now_ms`."""
        steps = self.steps_done(now_ms) - self._batch.steps
        used = self.cache.held + self._batch.growth(steps)
        ready = sum(1 for s in self._arriving if s.ready_ms <= now_ms)
        return ReplicaLoad(
            running=len(self._running),
            waiting=len(self._waiting) + ready,
            kv_usage=min(1.0, used / self.cache.capacity),
            prompt_tokens_total=self._prompt_total,
            generation_tokens_total=self._generated_total + steps * self._batch.size,
            cached_tokens_total=self._cached_total,
            preemptions_total=self._preempted,
        )

    def _joinable(self) -> bool:
        """Whether an arrival could join the batch at the next step boundary."""
        return not self._waiting and len(self._running) < self.options.max_num_seqs

    def _interrupt(self, at_ms: float) -> None:
        if self._stretch is not None and not self._chunks:
            self._stretch.cut_at(max(at_ms, self._now_ms))  # what was told stays true

    def _end_stretch(self, stretch: Stretch, happenings: list[Happening]) -> None:
        if self._batch.size:
            self.cache.grow(self._batch.growth(stretch.length))
            self._batch.advance(stretch.length)
            self._generated_total += stretch.length * self._batch.size
        chunks, self._chunks = self._chunks, []
        self._stretch = None
        for sequence, tokens in chunks:
            sequence.pending -= tokens
        self._drop_aborted()
        for sequence in self._batch.finished():
            self._finish(sequence, stretch.end_ms, happenings)
        for sequence, _ in chunks:
            if not sequence.pending and not sequence.aborted:
                self._prefilled(sequence, stretch.end_ms, happenings)

    def _drop_aborted(self) -> None:
        if len(self._running) + len(self._waiting) + len(self._arriving) > len(self._all):
            for sequence in [s for s in self._running.values() if s.aborted]:
                self._leave(sequence)

    def _prefilled(self, sequence: Sequence, at_ms: float, happenings: list[Happening]) -> None:
        """The last chunk is computed: one more token is out, and decoding begins."""
        first = sequence.done == 0
        sequence.done += 1
        self._generated_total += 1
        if first:
            self._prompt_total += sequence.prompt_tokens
            self._cached_total += sequence.cached
            happenings.append(FirstToken(sequence.id, at_ms, sequence.cached))
        else:
            happenings.append(Resumed(sequence.id, at_ms))
        if sequence.done == sequence.output_tokens:
            self._finish(sequence, at_ms, happenings)
        else:
            self._batch.join(sequence)

    def _finish(self, sequence: Sequence, at_ms: float, happenings: list[Happening]) -> None:
        self._leave(sequence)
        del self._all[sequence.id]
        happenings.append(Finished(sequence.id, at_ms, sequence.done))

    def _leave(self, sequence: Sequence) -> None:
        """Stop running and give memory back; what is computed of it stays reusable."""
        del self._running[sequence.id]
        if sequence is self._prefilling:
            self._prefilling = None
        if sequence.ticket:
            self._batch.leave(sequence)
        computed = (sequence.slots - sequence.pending) // self._hash_tokens
        self.cache.release(
            sequence.id,
            sequence.blocks,
            sequence.held,
            -(-sequence.slots // self.options.block_size),
            min(computed, len(sequence.blocks)),
        )
        sequence.pending = 0

    def _schedule(self, at_ms: float, happenings: list[Happening]) -> None:
        """Choose what runs next, as vLLM does: the running first, then the queue in order."""
        while self._arriving and self._arriving[0].ready_ms <= at_ms:
            self._waiting.append(self._arriving.popleft())
        preempted = self._preempted
        while self._batch.growth(1) > self.cache.available:
            self._preempt_last(at_ms, happenings)
        self._choose_chunks(admit=preempted == self._preempted)
        self._start(at_ms)

    def _preempt_last(self, at_ms: float, happenings: list[Happening]) -> None:
        sequence = next(reversed(self._running.values()))
        self._leave(sequence)
        self._preempted += 1
        self._waiting.appendleft(sequence)
        happenings.append(Preempted(sequence.id, at_ms, sequence.done))

    def _choose_chunks(self, *, admit: bool) -> None:
        budget = self.options.max_num_batched_tokens - self._batch.size
        if self._prefilling is not None:
            budget = self._chunk(self._prefilling, budget)
        while admit and self._waiting and budget > 0:
            if len(self._running) >= self.options.max_num_seqs:
                break
            if not self._admit(self._waiting[0]):
                break
            budget = self._chunk(self._waiting.popleft(), budget)

    def _admit(self, sequence: Sequence) -> bool:
        """Hold memory for all the sequence knows, or change nothing and return False."""
        known, size = sequence.known, self._hash_tokens
        hashes = sequence.blocks[: known // size]
        matched = self.cache.match(hashes, (known - 1) // size)
        blocks = -(-known // self.options.block_size)
        reserved = self._batch.growth(1)
        if not self.cache.acquire(sequence.id, hashes, matched, blocks, reserved):
            return False
        sequence.slots = known
        sequence.held = len(hashes)
        sequence.pending = known - matched * size
        if sequence.cached < 0:
            sequence.cached = matched * size
        self._running[sequence.id] = sequence
        return True

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """Give a sequence its share of the step; what is left of the budget."""
        tokens = min(sequence.pending, budget)
        self._chunks.append((sequence, tokens))
        self._prefilling = sequence if tokens < sequence.pending else None
        return budget - tokens

    def _start(self, at_ms: float) -> None:
        batch = self._batch
        step_ms = self.timing.decode_step_ms(batch.size, batch.context) if batch.size else 0.0
        if self._chunks:
            share = self.timing.interference if batch.size else 1.0
            self._stretch = Stretch(at_ms, step_ms + share * self._prefill_ms(), 0.0, 1)
        elif batch.size:
            steps = batch.steps_within(batch.steps_to_finish(), self.cache.available)
            self._stretch = Stretch(at_ms, step_ms, self.timing.decode.dk * batch.size, steps)
            if self._arriving and self._joinable():
                self._interrupt(self._arriving[0].ready_ms)

    def _prefill_ms(self) -> float:
        """Chunks of one step share the fixed cost of a forward pass."""
        fixed_ms = total_ms = self.timing.prefill.c0
        for sequence, tokens in self._chunks:
            before = sequence.slots - sequence.pending
            total_ms += self.timing.prefill_ms(tokens, before) - fixed_ms
        return total_ms


def _check(timing: TimingModel, options: ReplicaOptions) -> None:
    if min(options.block_size, options.hash_blocks, options.max_num_seqs) < 1:
        raise ValueError("block_size, hash_blocks and max_num_seqs must be at least 1")
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise ValueError("max_num_batched_tokens must not be below max_num_seqs")
    if timing.decode_step_ms(1, 1) <= 0 or timing.decode.dk < 0:
        raise ValueError("the timing model's decode steps must take time")
