"""Runs the load generator as a child process and turns what it measured into a result."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING

import msgspec

from infctl import errors
from infctl.runs.result import RunResult
from infctl.runs.spec import Failed, Measured, Message, Progress, RunSpec
from infctl.runs.summary import summarise
from infctl.runs.workloads import duration_s

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Progress", "RunSpec", "duration_s", "measure", "pick_speed", "run"]

RUN_S = 80.0
SPEED_MAX = 12.0
_STOP_S = 2.0
_STDERR_BYTES = 4000


def pick_speed(duration_s: float) -> float:
    """The speed that fits a workload of so many engine seconds into about 80 s of wall time: at
    least 1, at most 12, beyond which timers of a millisecond distort what is measured."""
    return round(min(SPEED_MAX, max(1.0, duration_s / RUN_S)), 1)


def run(spec: RunSpec, progress: Callable[[Progress], None] = lambda _: None) -> RunResult:
    """Run a spec to its end. Raises InfctlError; ends the client on any way out."""
    return summarise(measure(spec, progress), spec)


def measure(spec: RunSpec, progress: Callable[[Progress], None] = lambda _: None) -> Measured:
    """Run a spec in a child process and return its raw samples. Raises InfctlError."""
    _check(spec)
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "infctl.bench.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C reaches us alone; the pipe ends the child
        )
        try:
            return _converse(child, spec, progress, stderr)
        finally:
            _end(child)


def _check(spec: RunSpec) -> None:
    """Hold the spec's fields to their bounds; constructing a Struct does not."""
    try:
        msgspec.convert(msgspec.to_builtins(spec), RunSpec)
    except msgspec.ValidationError as error:
        raise errors.UsageError(f"the run is out of bounds: {error}") from error


def _converse(
    child: subprocess.Popen[bytes],
    spec: RunSpec,
    progress: Callable[[Progress], None],
    stderr: IO[bytes],
) -> Measured:
    assert child.stdin is not None
    assert child.stdout is not None
    decode = msgspec.json.Decoder(Message).decode
    with contextlib.suppress(BrokenPipeError):  # if it died at once, the loop below says so
        child.stdin.write(msgspec.json.encode(spec) + b"\n")
        child.stdin.flush()
    for line in child.stdout:
        message = decode(line)
        if isinstance(message, Measured):
            return message
        if isinstance(message, Failed):
            raise _error(message)
        progress(message)
    stderr.seek(0)
    text = stderr.read().decode(errors="replace")[-_STDERR_BYTES:].strip()
    raise errors.MachineError(
        f"the load generator ended without a result (exit code {child.wait()})",
        where=spec.url,
        hint=text or "It left no message; it was probably killed.",
    )


def _error(failed: Failed) -> errors.InfctlError:
    kind = getattr(errors, failed.kind, errors.TargetError)
    error: errors.InfctlError = kind(failed.message, where=failed.where, hint=failed.hint)
    return error


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()
