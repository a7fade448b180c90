"""The emulated engine behind the API: the loop, sleep, faults, metrics."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from infctl.emulator.clock import EngineClock
from infctl.emulator.loop import EngineLoop
from infctl.emulator.metrics import Metrics
from infctl.emulator.text import Speech
from infctl.replica import Replica

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from infctl.emulator.events import EventPublisher
    from infctl.emulator.faults import Fault
    from infctl.emulator.options import EmulatorOptions


class EmulatedEngine:
    """One engine. Asleep or stalled, its time stands still: requests hang, as in a real one."""

    def __init__(self, options: EmulatorOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.speech = Speech(options.bytes_per_token)
        self.error_status: int | None = None
        self.asleep = False
        self.started_unix_s = self.unix_s()
        self._sleep_level = 0
        self._loop = loop
        self._fault: Fault | None = None
        self._fault_timer: asyncio.TimerHandle | None = None
        replica = Replica(options.timing, options.replica)
        self.metrics = Metrics(
            options.dialect, options.model, options.replica.block_size, replica.cache.capacity
        )
        self._publisher = self._open_events()
        wall_s = time.perf_counter
        clock = EngineClock(wall_s, options.speed)
        self.loop = EngineLoop(
            replica, clock, self.metrics, loop, wall_s, self._publisher, options.seed
        )
        if options.fault is not None:
            self.set_fault(options.fault)

    def unix_s(self) -> int:
        """Wall-clock time for `created` fields."""
        return int(time.time())

    def close(self) -> None:
        """Stop; nothing is sent any more."""
        self.loop.close()
        if self._publisher is not None:
            self._publisher.close()

    def metrics_text(self) -> bytes:
        """The text of /metrics as of now."""
        self.loop.run()
        now = self.loop.snapshot(asleep=self.asleep, sleep_level=self._sleep_level)
        return self.metrics.render(now)

    def lost(self, request_id: str) -> None:
        """A client went away; like vLLM, this counts as no finished request."""
        self.loop.abort(request_id)

    def end(self, request_ids: Iterable[str]) -> None:
        """Abort requests whose clients are still there."""
        for request_id in request_ids:
            answer = self.loop.answers.get(request_id)
            done = self.loop.abort(request_id)
            if answer is not None and done is not None:
                self.metrics.finished["abort"] += 1
                answer.cut_short(done)

    # -- sleep -------------------------------------------------------------------------------

    def sleep(self, level: int, done: Callable[[], None]) -> None:
        """Go to sleep, dropping running requests and the prefix cache; `done` when asleep."""
        self.end(list(self.loop.answers))
        self.asleep = True
        self._sleep_level = level
        self.loop.replica.cache.clear()
        self._apply_rate()
        self._loop.call_later((self.options.timing.sleep_s or 0.0) / self.options.speed, done)

    def wake(self, done: Callable[[], None]) -> None:
        """Wake up; a second call finds nothing to do. `done` once requests are served again."""

        def awake() -> None:
            self.asleep = False
            self._sleep_level = 0
            self._apply_rate()
            done()

        delay_s = (self.options.timing.wake_s or 0.0) if self.asleep else 0.0
        self._loop.call_later(delay_s / self.options.speed, awake)

    # -- faults ------------------------------------------------------------------------------

    def set_fault(self, fault: Fault) -> None:
        """Replace the fault in force."""
        self._clear_fault()
        if fault.mode == "none":
            return
        if fault.after_tokens:
            self.loop.after_tokens(fault.after_tokens, lambda: self._strike(fault))
        else:
            self._strike(fault)

    def _clear_fault(self) -> None:
        if self._fault_timer is not None:
            self._fault_timer.cancel()
            self._fault_timer = None
        self.loop.after_tokens(0, None)
        self._fault = None
        self.error_status = None
        self._apply_rate()

    def _strike(self, fault: Fault) -> None:
        if fault.mode == "die":
            # The answer to POST /fault, if there is one, is on its way already.
            self._loop.call_soon(os._exit, 1)
            return
        self._fault = fault
        if fault.mode == "error":
            self.error_status = fault.status
            self._fail_all(fault.status)
        self._apply_rate()
        if fault.for_s is not None:
            delay_s = fault.for_s / self.options.speed
            self._fault_timer = self._loop.call_later(delay_s, self._clear_fault)

    def _fail_all(self, status: int) -> None:
        for request_id, answer in list(self.loop.answers.items()):
            self.loop.abort(request_id)
            self.metrics.finished["error"] += 1
            answer.fail(status, "injected fault")

    def _apply_rate(self) -> None:
        mode = self._fault.mode if self._fault is not None else "none"
        if self.asleep or mode == "stall":
            rate = 0.0
        elif self._fault is not None and mode == "slow":
            rate = self.options.speed / self._fault.factor
        else:
            rate = self.options.speed
        if rate != self.loop.clock.rate:
            self.loop.set_rate(rate)

    def _open_events(self) -> EventPublisher | None:
        options = self.options
        if not options.event_port:
            return None
        from infctl.emulator.events import EventPublisher  # pyzmq costs 40 ms to import

        return EventPublisher(
            options.host,
            options.event_port,
            options.event_replay_port,
            options.replica.block_size,
            self._loop,
            time.time,
        )
