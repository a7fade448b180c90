"""Every failure infctl reports: what, where, and what to do about it.

An error's kind settles the exit code of a command and the HTTP status of an answer, so neither
is chosen where the error is raised. Exit codes are part of the public contract (docs/cli.md).
"""

from __future__ import annotations

from typing import ClassVar

EXIT_DONE = 0
EXIT_VERDICT_NO = 1
EXIT_CHANGES = 10
EXIT_UNDECIDED = 11


class InfctlError(Exception):
    """An expected failure: shown as one message, without a traceback.

    `where` names the file, line, key or address; `hint` says what to do next.
    """

    exit_code: ClassVar[int] = 5
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class VerdictError(InfctlError):
    """The command ran and its answer is no (unhealthy, gate failed, drill failed)."""

    exit_code = EXIT_VERDICT_NO


class UsageError(InfctlError):
    """The command line is wrong."""

    exit_code = 2
    http_status = 400


class InputError(InfctlError):
    """A profile, trace or other input is wrong."""

    exit_code = 3
    http_status = 400


class MachineError(InfctlError):
    """This machine lacks something: a port, a binary, a permission."""

    exit_code = 4
    http_status = 503


class TargetError(InfctlError):
    """The engine, cluster or service we talk to failed or is out of reach."""

    exit_code = 5
    http_status = 502


class UndecidedError(InfctlError):
    """There is not enough to decide on, or something blocks the way."""

    exit_code = EXIT_UNDECIDED
