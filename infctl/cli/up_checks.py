"""What real engines need on this machine, looked at before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infctl.errors import InputError, MachineError

if TYPE_CHECKING:
    from infctl.profile.model import EngineConfig, Profile

TINY_MODEL = "~/.cache/infctl/tiny-model"
"""Where the shipped tiny profiles expect their model, which `up` makes if it is not there."""

_PACKAGES = frozenset({"vllm", "sglang"})
"""Engines that are packages of their own name; other codecs' engines may be anything."""

_VERSION = """
import importlib.metadata as metadata, importlib.util as util, sys
try:
    print(metadata.version(sys.argv[1]))
except metadata.PackageNotFoundError:
    print("?" if util.find_spec(sys.argv[1]) else "absent")
"""
_VERSION_S = 20.0


def check_units(profile: Profile) -> None:
    """Raise InputError when there would be nothing to start."""
    if any(pool.units.ready for pool in profile.pools):
        return
    keys = [f"pools.{pool.name}.units.ready" for pool in profile.pools]
    what = f"{keys[0]} is 0" if len(keys) == 1 else f"{', '.join(keys)} are 0"
    raise InputError(
        f"no units: {what}, so nothing would serve", hint=f"For example: --set {keys[0]}=1"
    )


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


def check_engine(engine: EngineConfig, python: str, emulable: bool) -> None:
    """See that a Python has the engine; warn when it is another version than the profile's.

    Raises MachineError. A Python that does not start is the actuator's to report.
    """
    installed = installed_version(engine.type, python)
    if installed == "absent" and engine.type in _PACKAGES:
        emulate = "\n  Or add --emulate, which needs no engine." if emulable else ""
        raise MachineError(
            f"{python} has no package {engine.type}",
            hint="Name the Python of an environment that has it: engine.python in the profile, or "
            f"INFCTL_{engine.type.upper()}_PYTHON.{emulate}",
        )
    if installed and installed[0].isdigit():
        _warn_of_version(engine, python, installed)


def _warn_of_version(engine: EngineConfig, python: str, installed: str) -> None:
    if engine.version and not _same(engine.version, installed):
        print(
            f"warning: engine.version is {engine.version}, but {python} has {engine.type} "
            f"{installed}: flags and metrics may differ",
            file=sys.stderr,
        )


def installed_version(package: str, python: str) -> str | None:
    """The version of a package in another Python's environment: `absent` if it has none, `?` if
    the package tells none, None if that Python does not start."""
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
