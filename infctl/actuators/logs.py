"""A rank's log: a file of bounded size, and its last lines at hand."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

LINES_KEPT = 20
LINE_CHARACTERS = 300


class RankLog:
    """Appends to `path`; at `bytes_max` the file becomes `path.1` and a new one begins."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._partial = b""
        self._descriptor = self._open()
        self._size = os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        """Append output of the rank. A full disk loses log, never the engine."""
        self._remember(data)
        if self._size + len(data) > self._bytes_max:
            self._rotate()
        try:
            self._size += os.write(self._descriptor, data)
        except OSError:
            return

    def last_lines(self) -> list[str]:
        """The newest lines, oldest first."""
        partial = [_shortened(self._partial)] if self._partial.strip() else []
        return [*self._lines, *partial][-LINES_KEPT:]

    def forget(self) -> None:
        """Begin the last lines anew: what follows is another process's."""
        self._lines.clear()
        self._partial = b""

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        os.close(self._descriptor)
        os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
        self._descriptor = self._open()
        self._size = 0

    def _remember(self, data: bytes) -> None:
        *lines, rest = (self._partial + data).split(b"\n")
        self._lines.extend(_shortened(line) for line in lines[-LINES_KEPT:] if line.strip())
        self._partial = rest[-4096:]


def _shortened(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip()[:LINE_CHARACTERS]
