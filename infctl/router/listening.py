"""The sockets a router listens on: opened here, or received from whoever opened them.

Workers of one router accept from the same sockets, and so does a router that takes over from a
running one: what has connected waits in the socket's own queue and is lost to nobody.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from infctl.errors import MachineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Container

BACKLOG = 4096


class Sockets:
    """Listening sockets by what they are for: `http`, `metrics`, `admin`, `admin-tcp`, `offer`,
    `worker-N`. Those `given` came from a parent or a predecessor."""

    def __init__(self, given: dict[str, int] | None = None) -> None:
        self._given = {name: socket.socket(fileno=fd) for name, fd in (given or {}).items()}
        self._sockets: dict[str, socket.socket] = {}
        self._paths: dict[str, str] = {}

    def tcp(self, name: str, host: str, port: int, option: str = "--port") -> socket.socket:
        """A socket at this address: the given one, if there is one. Raises MachineError, and
        UsageError where the given one is at another address."""
        sock = self._given.pop(name, None)
        if sock is not None and not _matches(sock, host, port):
            where = printable(sock)
            sock.close()
            raise UsageError(
                f"the router that runs listens on {where}, and not on {host}:{port}",
                where=option,
                hint="Give the same address, or end that router and start this one anew.",
            )
        self._sockets[name] = sock = sock or _bind(host, port, option)
        return sock

    def unix(self, name: str, path: Path) -> socket.socket:
        """A socket at this path, open to its owner alone. Raises MachineError."""
        self._sockets[name] = sock = self._given.pop(name, None) or _bind_unix(path)
        self._paths[name] = sock.getsockname()
        return sock

    def close_unused(self) -> None:
        """Close what was given and not asked for: nobody would accept there."""
        while self._given:
            self._given.popitem()[1].close()

    def descriptors(self) -> dict[str, int]:
        """Name → file descriptor."""
        return {name: sock.fileno() for name, sock in self._sockets.items()}

    def close(self, keep: Container[str] = ()) -> None:
        """Close all of them, and remove the paths of those that nobody keeps open."""
        self.close_unused()
        for name, path in self._paths.items():
            if name not in keep:
                with suppress(OSError):
                    os.unlink(path)
        for sock in self._sockets.values():
            sock.close()

    def leave(self) -> None:
        """Close all of them; others go on with them."""
        self.close(keep=self._paths)


def _matches(sock: socket.socket, host: str, port: int) -> bool:
    bound = sock.getsockname()
    try:
        wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    except OSError:
        return False
    return bool(bound[0] == wanted[0] and port in (0, bound[1]))


def _bind(host: str, port: int, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise MachineError(
            f"cannot listen: {reason}",
            where=f"{host}:{port}",
            hint=f"Choose another with {option}, or 0 for any free one.",
        ) from error
    return sock


def _bind_unix(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise MachineError(
            f"cannot open the socket: {error.strerror or error}", where=str(path)
        ) from error
    finally:
        os.umask(mask)
    return sock


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can connect."""
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def printable(sock: socket.socket) -> str:
    """Host and port."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
