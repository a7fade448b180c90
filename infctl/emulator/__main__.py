"""`python -m infctl.emulator`: one emulated engine over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from typing import TYPE_CHECKING

from infctl.emulator.api import Api
from infctl.emulator.engine import EmulatedEngine
from infctl.emulator.http import Server
from infctl.emulator.options import parse_options
from infctl.errors import InfctlError, MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infctl.emulator.options import EmulatorOptions


async def serve(options: EmulatorOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises MachineError when a port cannot be opened."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    engine = EmulatedEngine(options, loop)
    server = Server(Api(engine).handle)
    try:
        listener = await loop.create_server(
            server.connection, options.host, options.port, backlog=4096, start_serving=False
        )
    except OSError as error:
        engine.close()
        raise _port_error(options, error) from None
    say(f"emulating {options.model}: loading weights")
    if options.startup_s:
        await _wait(stopped, options.startup_s / options.speed)
    await listener.start_serving()
    port = listener.sockets[0].getsockname()[1]
    say(f"emulating {options.model}: ready on http://{options.host}:{port}")
    gc.collect()
    gc.freeze()
    await stopped.wait()
    listener.close()
    engine.close()
    server.close()


def say(text: str) -> None:
    """A line for the log."""
    print(text, file=sys.stderr, flush=True)


async def _wait(stopped: asyncio.Event, seconds: float) -> None:
    """Wait that long, or until stopped."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), seconds)


def _port_error(options: EmulatorOptions, error: OSError) -> MachineError:
    return MachineError(
        f"the port cannot be opened: {error.strerror}",
        where=f"{options.host}:{options.port}",
        hint="stop what listens there, or choose another --port",
    )


def _sentences(error: InfctlError) -> str:
    """What, where and what to do, on the one line that a log shows."""
    text = f"{error.where}: {error.message}" if error.where else error.message
    hint = f". {error.hint[0].upper()}{error.hint[1:]}" if error.hint else ""
    return f"{text.rstrip('.')}{hint}"


def main(argv: Sequence[str]) -> int:
    """Run the server; the exit code."""
    try:
        options = parse_options(argv)
        if sys.platform == "win32":
            asyncio.run(serve(options))
        else:
            import uvloop

            uvloop.run(serve(options))
    except InfctlError as error:
        say(" ".join(f"error: {_sentences(error)}".split()))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
