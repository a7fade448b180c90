"""The engine's heartbeat: one timer that moves the replica on and flushes its streams.

Deadlines are absolute engine times, so a late tick delays what it shows and nothing after it.
First tokens and ends are woken for; other tokens wait for the next flush, `FLUSH_S` apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.emulator.metrics import Snapshot
from infctl.replica import FirstToken, Preempted, ReplicaRequest, Resumed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from infctl.emulator.clock import EngineClock
    from infctl.emulator.events import EventPublisher
    from infctl.emulator.metrics import Metrics
    from infctl.emulator.stream import Answer
    from infctl.replica import Happening, Replica

FLUSH_S = 0.005
_GRAIN_S = 0.001
_EARLY_S = _GRAIN_S
"""Timers of the event loop, and uvloop's own clock, have a grain of 1 ms, and a wake-up costs half
of that. So timers aim that half early, and what is due within the grain is delivered."""


class EngineLoop:
    """Drives one replica in engine time."""

    def __init__(
        self,
        replica: Replica,
        clock: EngineClock,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        wall_s: Callable[[], float],
        publisher: EventPublisher | None = None,
        seed: int = 0,
    ) -> None:
        self.replica = replica
        self.clock = clock
        self.metrics = metrics
        self.publisher = publisher
        self.answers: dict[str, Answer] = {}
        self._loop = loop
        self._wall_s = wall_s
        self._seed = seed
        self._due_s = 0.0
        self._decoding: dict[str, Answer] = {}
        self._draining: dict[str, Answer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._trigger: tuple[int, Callable[[], None]] | None = None
        self._flushed_s = 0.0
        self._flushed_ms = 0.0
        self._flushed_steps = 0
        self._scraped = (0.0, 0)

    def submit(self, answer: Answer) -> None:
        """Start on a request. Raises ValueError when the replica cannot take it."""
        self.run()
        now_ms = self.clock.now_ms()
        assert answer.context is not None
        blocks = answer.context.blocks(self.replica.options.block_size, self._seed)
        if self.publisher is None:
            answer.context = None
        self.replica.submit(
            ReplicaRequest(answer.shape.id, answer.prompt_tokens, answer.output_tokens, blocks),
            now_ms,
        )
        answer.arrived_ms = now_ms
        self.answers[answer.shape.id] = answer
        self._arm()

    def abort(self, request_id: str) -> int | None:
        """Forget a request; the tokens it had, or None if it is unknown."""
        self._draining.pop(request_id, None)
        if self.answers.pop(request_id, None) is None:
            return None
        self._decoding.pop(request_id, None)
        now_ms = self.clock.now_ms()
        done = self.replica.tokens_done(request_id, now_ms)
        self.replica.abort(request_id, now_ms)
        self._arm()
        return done

    def resume(self, request_id: str) -> None:
        """A slow reader caught up."""
        answer = self._draining.get(request_id)
        if answer is not None and answer.resume():
            del self._draining[request_id]

    def set_rate(self, rate: float) -> None:
        """Let engine time pass at another rate, 0 to stop it."""
        self.run()
        self.clock.set_rate(rate)
        self._arm()

    def after_tokens(self, tokens: int, action: Callable[[], None] | None) -> None:
        """Call `action` once that many more tokens are out; None forgets the last such wish."""
        if action is None:
            self._trigger = None
        else:
            total = self.replica.load(self.clock.now_ms()).generation_tokens_total
            self._trigger = (total + tokens, action)

    def snapshot(self, *, asleep: bool, sleep_level: int) -> Snapshot:
        """Numbers for a scrape."""
        now_ms = self.clock.now_ms()
        load = self.replica.load(now_ms)
        then_ms, then = self._scraped
        self._scraped = (now_ms, load.generation_tokens_total)
        elapsed_s = max(now_ms - then_ms, 1.0) / 1000
        rate = (load.generation_tokens_total - then) / elapsed_s
        return Snapshot(load, asleep, sleep_level, rate)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run(self) -> None:
        """Bring the replica up to now and deliver what is due."""
        now_ms = self.clock.now_ms() + _EARLY_S * 1000 * self.clock.rate
        happenings = self.replica.advance(now_ms)
        if self.publisher is not None:
            self.publisher.publish(self.replica.cache.take_events(), self.answers)
        for happening in happenings:
            answer = self.answers.get(happening.id)
            if answer is not None:
                self._deliver(answer, happening)
        wall_s = self._wall_s()
        if self._decoding and wall_s - self._flushed_s >= FLUSH_S - _EARLY_S:
            self._flush(now_ms)
            self._flushed_s = wall_s
        if self._trigger is not None:
            self._check_trigger(now_ms)

    def _tick(self) -> None:
        self._timer = None
        self.run()
        self._arm()

    def _deliver(self, answer: Answer, happening: Happening) -> None:
        request_id = happening.id
        if isinstance(happening, FirstToken):
            answer.cached = happening.cached_tokens
            answer.first_ms = happening.at_ms
            self.metrics.ttft.observe((happening.at_ms - answer.arrived_ms) / 1000)
            answer.counted = 1
            answer.begin()
            self._decode(answer, happening.at_ms)
        elif isinstance(happening, Resumed):
            self._decode(answer, happening.at_ms)
        elif isinstance(happening, Preempted):
            answer.flush(happening.tokens)
            self._decoding.pop(request_id, None)
        else:
            self._finish(answer, happening.at_ms)

    def _decode(self, answer: Answer, at_ms: float) -> None:
        offset = self.replica.offset(answer.shape.id)
        if offset is not None:
            answer.offset = offset
            if not self._decoding:  # after an idle time the next flush counts from here
                self._flushed_steps = self.replica.steps_done(at_ms)
                self._flushed_ms = at_ms
            self._decoding[answer.shape.id] = answer

    def _finish(self, answer: Answer, at_ms: float) -> None:
        request_id = answer.shape.id
        self._decoding.pop(request_id, None)
        del self.answers[request_id]
        metrics = self.metrics
        metrics.finished[answer.reason] += 1
        metrics.e2e.observe((at_ms - answer.arrived_ms) / 1000)
        if answer.output_tokens > 1:
            spacing_ms = (at_ms - answer.first_ms) / (answer.output_tokens - 1)
            metrics.tpot.observe(spacing_ms / 1000)
            metrics.itl.observe(spacing_ms / 1000, answer.output_tokens - answer.counted)
        if not answer.finish():
            self._draining[request_id] = answer

    def _flush(self, now_ms: float) -> None:
        steps = self.replica.steps_done(now_ms)
        new = steps - self._flushed_steps
        if new > 0:
            self._count_tokens(steps, (now_ms - self._flushed_ms) / new)
            for answer in self._decoding.values():
                answer.flush(answer.counted)
        self._flushed_steps = steps
        self._flushed_ms = now_ms

    def _count_tokens(self, steps: int, step_ms: float) -> None:
        tokens = 0
        for answer in self._decoding.values():
            done = steps + answer.offset
            tokens += done - answer.counted
            answer.counted = done
        if tokens > 0:
            self.metrics.itl.observe(step_ms / 1000, tokens)

    def _check_trigger(self, now_ms: float) -> None:
        if self._trigger is None:
            return
        total, action = self._trigger
        if self.replica.load(now_ms).generation_tokens_total >= total:
            self._trigger = None
            self._flushed_s = 0.0
            self._flush(now_ms)
            action()

    def _arm(self) -> None:
        """Wake at the next batch change, or at the next flush that has something to send."""
        at_s = self._next_s()
        if self._timer is not None:
            if at_s is not None and self._due_s <= at_s:
                return
            self._timer.cancel()
            self._timer = None
        if at_s is not None:
            self._due_s = at_s
            delay_s = at_s - _EARLY_S / 2 - self._wall_s()
            # Less than the grain would round to 0 and spin.
            self._timer = self._loop.call_later(max(_GRAIN_S, delay_s), self._tick)

    def _next_s(self) -> float | None:
        change_ms = self.replica.next_change_ms()
        at_s = None if change_ms is None else self.clock.wall_s(change_ms)
        if not self._decoding or at_s is None:
            return at_s
        step_ms = self.replica.next_step_ms(self.clock.now_ms())
        step_s = None if step_ms is None else self.clock.wall_s(step_ms)
        return at_s if step_s is None else min(at_s, max(step_s, self._flushed_s + FLUSH_S))
