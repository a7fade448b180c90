"""Ask an engine's health URL without waiting for the answer."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import selectors

_STATUS_BYTES = 12


class HealthProbe:
    """One GET at a time; `healthy` once an answer began with status 200, `failures` of them in a
    row have not since."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: tuple[str, int],
        path: str,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self.healthy = False
        self.failures = 0
        self._selector = selector
        self._address = address
        host, port = address
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._answer = b""
        self._give_up_at = 0.0
        self._next_at = 0.0

    def poll(self, now: float) -> None:
        """Begin a request if it is time to, and none is under way that may still be answered."""
        if self._socket is not None and now >= self._give_up_at:
            self._fail()
        if self._socket is not None or now < self._next_at:
            return
        self._answer = b""
        self._next_at = now + self._interval_s
        self._give_up_at = now + self._timeout_s
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        code = self._socket.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS):
            self._fail()
            return
        self._selector.register(self._socket, 2, self._connected)  # 2: selectors.EVENT_WRITE

    def hasten(self, timeout_s: float) -> None:
        """Probe anew at once and more often, with less patience."""
        self.close()
        self._interval_s = self._timeout_s = timeout_s
        self._next_at, self.failures, self.healthy = 0.0, 0, False

    def close(self) -> None:
        """End the request under way."""
        if self._socket is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _connected(self) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(self._request)
        except OSError:
            self._fail()
            return
        self._selector.modify(self._socket, 1, self._answered)  # 1: selectors.EVENT_READ

    def _answered(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._answer += data
        if not data or len(self._answer) >= _STATUS_BYTES:
            self.healthy = self._answer[:5] == b"HTTP/" and self._answer[8:12] == b" 200"
            if self.healthy:
                self.failures = 0
                self.close()
            else:
                self._fail()

    def _fail(self) -> None:
        self.failures += 1
        self.healthy = False
        self.close()
