"""The admin API from the command line: finding a router's socket, and asking it."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from infctl import state
from infctl.errors import TargetError, UsageError

_TIMEOUT_S = 5.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float = _TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: Path, method: str, target: str, body: bytes | None = None) -> Any:
    """The decoded answer of one admin request. Raises TargetError."""
    status, found = request(path, method, target, body)
    if status != 200:
        message = found.get("error", {}).get("message", "") if isinstance(found, dict) else ""
        raise TargetError(f"the router answered {status}: {message}", where=str(path))
    return found


def request(
    path: Path, method: str, target: str, body: bytes | None = None, timeout_s: float = _TIMEOUT_S
) -> tuple[int, Any]:
    """Status and decoded answer of one admin request. Raises TargetError."""
    connection = UnixConnection(str(path), timeout_s)
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise TargetError(f"the router does not answer: {error}", where=str(path)) from error
    finally:
        connection.close()


def find(fleet: str | None) -> Path:
    """The admin socket of the fleet's router, or of the only one that runs.

    Raises TargetError when none runs, UsageError when there are several to choose from.
    """
    if fleet is not None:
        path = state.socket_path(fleet)
        if not _listens(path):
            raise TargetError(
                f"no router of {fleet!r} runs", where=str(path), hint=f"Start it: infctl up {fleet}"
            )
        return path
    root = state.root()
    names = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    running = [name for name in names if _listens(state.socket_path(name))]
    if not running:
        raise TargetError("no router runs here", hint="Start a fleet with one: infctl up")
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} routers run here", hint=f"Name one with --fleet: {', '.join(running)}"
        )
    return state.socket_path(running[0])


def _listens(path: Path) -> bool:
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.settimeout(_TIMEOUT_S)
        probe.connect(str(path))
    except OSError:
        return False
    finally:
        probe.close()
    return True
