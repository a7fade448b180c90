"""Signals as something to wait for: none can strike in the middle of starting or stopping."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process.

    Child processes that must not see Ctrl-C need a session of their own.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        for number in _STOP:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a signal came; whether one has come by now."""
        if not self.count:
            select.select([self._read], [], [], max(0.0, seconds))
        return self.count > 0

    def wait_more(self, seconds: float, before: int) -> bool:
        """Wait so long; whether more than `before` signals have come by now.

        Steps are short, so that a further signal is noticed though the first one's byte was read.
        """
        if self.count <= before:
            time.sleep(max(0.0, seconds))
        return self.count > before

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")
