"""Signals are noted, never raised."""

from __future__ import annotations

import os
import signal
import threading
import time

from infctl.cli.up_signals import Signals


def test_nothing_came() -> None:
    with Signals() as signals:
        assert signals.wait(0.01) is False


def test_a_signal_before_the_wait_is_not_lost() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with Signals() as signals:
            os.kill(os.getpid(), number)
            before = time.monotonic()
            assert signals.wait(5)
            assert signals.wait(5)
            assert time.monotonic() - before < 1


def test_a_signal_during_the_wait_ends_it() -> None:
    with Signals() as signals:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        before = time.monotonic()
        assert signals.wait(5)
        assert time.monotonic() - before < 2
        timer.join()


def test_more_signals_mean_hurry() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert not signals.wait_more(0.01, before=1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait_more(0.01, before=1)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
