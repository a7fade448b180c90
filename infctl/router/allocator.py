"""The memory allocator's settings for a process that handles large bodies."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1


def tune_allocator() -> None:
    """Keep large bodies on the heap: glibc would map and unmap each one, which costs more than
    handling it. Elsewhere than on glibc this does nothing."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)
