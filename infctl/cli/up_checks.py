"""What real engines need on this machine, looked at before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infctl.errors import MachineError

if TYPE_CHECKING:
    from infctl.profile.model import EngineConfig

TINY_MODEL = "~/.cache/infctl/tiny-model"
"""Where the shipped tiny profiles expect their model, which `up` makes if it is not there."""

_VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
_VERSION_S = 20.0


def prepare_model(path: str) -> None:
    """See that a model on this machine is there; make the tiny one. Raises MachineError.

    A path that is no path but a name is the engine's to find.
    """
    if not path.startswith(("/", ".", "~")) or Path(path).expanduser().exists():
        return
    from infctl.testing.tiny_model import TinyModelError, make_tiny_model

    if Path(path) == Path(TINY_MODEL).expanduser():
        try:
            make_tiny_model(Path(path))
        except (TinyModelError, OSError) as error:
            raise MachineError(f"cannot make the tiny model: {error}", where=path) from error
        return
    raise MachineError(
        "the model is not there",
        where=path,
        hint="Set models[].path to its folder on this machine, or try the fleet with --emulate. "
        f"A tiny model to try real engines with: python -m infctl.testing.tiny_model {path}",
    )


def warn_of_version(engine: EngineConfig, python: str) -> None:
    """Warn when the engine that is installed is another than the profile was written for."""
    installed = installed_version(engine.type, python) if engine.version else None
    if engine.version and installed and not _same(engine.version, installed):
        print(
            f"warning: engine.version is {engine.version}, but {python} has {engine.type} "
            f"{installed}: flags and metrics may differ",
            file=sys.stderr,
        )


def installed_version(package: str, python: str) -> str | None:
    """The version of a package in another Python's environment; None if that does not tell."""
    try:
        found = subprocess.run(
            [python, "-c", _VERSION, package],
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # starting the engine will say what is wrong
    return found.stdout.strip() or None if found.returncode == 0 else None


def _same(wanted: str, installed: str) -> bool:
    """Whether 0.32 is meant by 0.32.1+cpu: as many parts as are wanted agree."""
    parts = installed.partition("+")[0].split(".")
    return parts[: len(wanted.split("."))] == wanted.split(".")
