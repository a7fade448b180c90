"""The router of `infctl up`: a child process on the units' state."""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from infctl import state
from infctl.cli.admin import UnixConnection
from infctl.errors import InfctlError, InputError, MachineError, TargetError, UsageError

_READY = b"ready "
_READY_S = 60.0
_PAUSE_S = 0.05
_ADMIN_S = 2.0
_LOG_BYTES_MAX = 64 * 1024 * 1024
_KINDS: tuple[type[InfctlError], ...] = (UsageError, InputError, MachineError)


def check_port(host: str, port: int) -> None:
    """Raise MachineError if the router could not listen there: before anything is started."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except socket.gaierror as error:
            raise MachineError(
                f"no such address: {error.strerror}", where=host, hint="Give another --host."
            ) from error
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be used: {error.strerror}",
                where=f"{host}:{port}",
                hint="Give another with --port; --port 0 takes any free one.",
            ) from error


class RouterProcess:
    """One router. It ends when its standard input does, so never outlives this process."""

    def __init__(self, fleet: str, arguments: list[str]) -> None:
        self.admin = state.socket_path(fleet)
        self.log = state.path(fleet) / "router.log"
        self.url = ""
        self._said = b""
        self.log.unlink(missing_ok=True)
        own = ["--state", fleet, "--admin", str(self.admin), "--parent-pipe"]
        with open(self.log, "ab", opener=state.private) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "infctl", "router", *arguments, *own],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self, pause: Callable[[float], bool]) -> bool:
        """Wait until it listens and an endpoint is ready; False when told to stop meanwhile.

        Raises the error it ended with.
        """
        deadline = time.monotonic() + _READY_S
        while not self._heard_ready():
            if self.process.poll() is not None:
                raise self.error()
            if time.monotonic() > deadline:
                raise TargetError(
                    f"the router is not ready after {_READY_S:.0f} s", hint=f"Its log: {self.log}"
                )
            if pause(_PAUSE_S):
                return False
        return True

    def _heard_ready(self) -> bool:
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            data = os.read(self.process.stdout.fileno(), 4096)
            if not data:
                break
            self._said = (self._said + data)[-8192:]
        for line in self._said.split(b"\n")[:-1]:
            if line.startswith(_READY):
                self.url = line[len(_READY) :].decode().strip()
        return bool(self.url)

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def error(self) -> InfctlError:
        """Why it ended, from its log and exit code."""
        code = self.process.wait()
        lines = _last_lines(self.log)
        said = "\n".join(lines).strip().removeprefix("error: ") or f"exit code {code}"
        kind = next((k for k in _KINDS if k.exit_code == code), TargetError)
        return kind(f"the router ended: {said}", hint=f"Its log: {self.log}")

    def fleet(self) -> dict[str, Any] | None:
        """What its admin API says of the fleet; None if it does not answer."""
        connection = UnixConnection(str(self.admin), _ADMIN_S)
        try:
            connection.request("GET", "/v1/fleet")
            answer = connection.getresponse()
            found = json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return found if isinstance(found, dict) else None

    def bound_log(self) -> None:
        """Keep its log from growing without end: what is too long becomes `router.log.1`."""
        with suppress(OSError):  # somebody removed it, or the disk is full: serving goes on
            if self.log.stat().st_size > _LOG_BYTES_MAX:
                shutil.copyfile(self.log, f"{self.log}.1")
                os.truncate(self.log, 0)

    def stop(self, drain_s: float, hurry: Callable[[float], bool]) -> None:
        """Let it drain and end; `hurry` waits and tells whether to kill it instead."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        deadline = time.monotonic() + drain_s
        while self.running and time.monotonic() < deadline and not hurry(_PAUSE_S):
            pass
        if self.running:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        Path(self.admin).unlink(missing_ok=True)


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-10:]
    except OSError:
        return []
