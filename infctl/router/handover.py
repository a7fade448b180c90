"""Passing the listening sockets from a running router to the one that takes its place.

The running one offers them on a Unix socket beside its admin socket, to its own user alone. Whoever
connects gets the descriptors at once and says `take` when it is ready to serve; only then does the
running one stop accepting, and says `done`. If the other one goes away before, nothing has changed.
Both accept for a moment in between, and nobody's connection is refused: it waits in a socket that
is open all the time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infctl.errors import MachineError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.router.listening import Sockets

_SAY_S = 5.0
_MESSAGE_MAX = 4096
_SOCKETS_MAX = 16
_OFFERS_MAX = 8
KEPT = ("http", "metrics", "admin", "admin-tcp", "offer")


def offer_path(admin: str) -> Path:
    """Where a router with this admin socket offers its sockets."""
    return Path(f"{admin}.next")


class Offer:
    """Offers the sockets to a successor; `taken` is called once it serves."""

    def __init__(self, sockets: Sockets, admin: str, taken: Callable[[], None]) -> None:
        self._sockets = sockets
        self._taken = taken
        self._sock = sockets.unix("offer", offer_path(admin))
        self._sock.listen(_OFFERS_MAX)
        self._sock.setblocking(False)
        self._talks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._sock.accept()
        except OSError:
            return
        if len(self._talks) >= _OFFERS_MAX or _user_of(client) not in (None, os.getuid()):
            client.close()
            return
        client.setblocking(False)
        task = self._loop.create_task(self._talk(client))
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _talk(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            found = {n: fd for n, fd in self._sockets.descriptors().items() if n in KEPT}
            socket.send_fds(client, [msgspec.json.encode(list(found))], list(found.values()))
            if await self._loop.sock_recv(client, 16) == b"take":
                self._taken()
                await self._loop.sock_sendall(client, b"done")

    def close(self) -> None:
        """Offer nothing more. Who is about to take is still answered."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


def _user_of(client: socket.socket) -> int | None:
    """The user at the other end; None where the system does not tell (the path's mode does)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    user: int = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[
        1
    ]
    return user


class Taken:
    """The sockets of a running router, which goes on until `confirm`."""

    def __init__(self, line: socket.socket, sockets: dict[str, int]) -> None:
        self.sockets = sockets
        self.confirmed = False
        self._line = line

    def confirm(self) -> None:
        """Have the other one accept nothing more; if it is gone meanwhile, it does not. Raises
        TargetError where it is there and does not answer: stopped, it would accept when it goes
        on, and never answer those."""
        with self._line:
            try:
                self._line.sendall(b"take")
                self._line.recv(16)
            except TimeoutError:
                raise TargetError(
                    "the router that ran before does not say that it has stopped accepting",
                    hint="If it hangs, kill it; this one can be started again.",
                ) from None
            except OSError:
                pass
        self.confirmed = True


def take(admin: str) -> Taken | None:
    """The sockets of the router with this admin socket, or None if none runs. Raises
    MachineError."""
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(_SAY_S)
    try:
        line.connect(str(offer_path(admin)))
    except (FileNotFoundError, ConnectionRefusedError):
        line.close()
        return None
    except OSError as error:
        line.close()
        raise _no_answer(admin, error) from error
    try:
        message, descriptors, _, _ = socket.recv_fds(line, _MESSAGE_MAX, _SOCKETS_MAX)
        names = msgspec.json.decode(message, type=list[str])
    except (OSError, msgspec.DecodeError) as error:
        line.close()
        raise _no_answer(admin, error) from error
    return Taken(line, dict(zip(names, descriptors, strict=True)))


def _no_answer(admin: str, error: Exception) -> MachineError:
    return MachineError(
        f"the running router does not hand over its sockets: {error}",
        where=str(offer_path(admin)),
        hint="Without --take-over, end it first.",
    )
