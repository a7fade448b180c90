"""What the server of a listening socket and those who answer its requests know of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from infctl.router.keys import Refusal
    from infctl.router.server import Connection
    from infctl.router.wire import Head


class Handler(Protocol):
    """What a server does with requests."""

    def on_head(self, head: Head) -> Refusal | None:
        """A head whose body is still on its way: why not to wait for it, or None. `on_request`
        asks again: what came at once is not asked about here."""
        ...

    def on_request(self, connection: Connection, head: Head, body: bytes | bytearray) -> None:
        """A whole request has arrived; answer through the connection, now or later."""
        ...

    def on_refused(self, status: int) -> None:
        """A request was refused before it was one (malformed, too large, too slow)."""
        ...

    def on_bug(self, error: Exception) -> None:
        """`on_request` raised; the client gets a 500."""
        ...


class Exchange(Protocol):
    """A request in work, as its connection sees it."""

    def client_gone(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...
