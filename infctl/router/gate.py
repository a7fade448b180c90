"""A token in front of a handler: for the admin API where others than its owner can reach it."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

from infctl.router.keys import Refusal
from infctl.router.wire import answer, error_body

if TYPE_CHECKING:
    from infctl.router.seams import Handler
    from infctl.router.server import Connection
    from infctl.router.wire import Head

TOKEN_MIN = 32


def digest(token: bytes) -> bytes:
    """What is kept of a token, and compared."""
    return sha256(token).digest()


class Gate:
    """Lets requests with the token through to `inner` (seams.Handler)."""

    def __init__(self, inner: Handler) -> None:
        self._inner = inner
        self.expected = b""

    def on_head(self, head: Head) -> Refusal | None:
        """Ask for the token before a body is read."""
        scheme, _, token = (head.get(b"authorization") or b"").partition(b" ")
        right = hmac.compare_digest(digest(token.strip()), self.expected)
        if right and scheme.lower() == b"bearer":
            return None
        return Refusal(401, "the admin API needs its token: Authorization: Bearer TOKEN")

    def on_request(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        refusal = self.on_head(head)
        if refusal is None:
            self._inner.on_request(connection, head, body)
            return
        text = error_body(refusal.status, refusal.message)
        connection.respond(head, answer(refusal.status, text, close=not head.keep_alive))

    def on_refused(self, status: int) -> None:
        self._inner.on_refused(status)

    def on_bug(self, error: Exception) -> None:
        self._inner.on_bug(error)
