"""Free TCP ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from infctl.errors import MachineError


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports nobody listens on now. Raises MachineError.

    Another process may still take one before it is used: whoever uses it must be able to fail.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            try:
                listener.bind((host, 0))
            except OSError as error:
                raise MachineError(
                    f"no free port: {error.strerror}", where=host, hint="Close what holds them."
                ) from error
            ports.append(listener.getsockname()[1])
    return ports
