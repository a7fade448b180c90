"""What runs on this machine, on disk, so that a second `infctl` sees it.

`$XDG_STATE_HOME/infctl/NAME/` (0700, its files 0600) holds `fleet.json`, a `lock` that the running
command keeps, and for each unit `units/UNIT/status.json`, which the unit's supervisor writes. Files
are replaced atomically. A process is a pid with its start time: pids alone are used again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from infctl.actuator import RESTART_FILE, RestartRequest, UnitStatus
from infctl.errors import InputError, MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1
SOCKET_PATH_MAX = 100
"""A Unix socket's path must be shorter than 104 (macOS) to 108 (Linux) bytes."""

STOPPED = "stopped"


class RouterState(msgspec.Struct, frozen=True):
    """The router that runs: `started` is its start time (epoch s), `admin` its socket's path."""

    pid: int
    started: float
    url: str
    admin: str


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet on this machine. `owner` and `owner_started` are the command that runs it."""

    format: int = FORMAT
    profile: str
    units: tuple[UnitStatus, ...] = ()
    router: RouterState | None = None
    owner: int = 0
    owner_started: float = 0.0


class UnitFile(msgspec.Struct, frozen=True):
    """What a unit's supervisor writes. `started` is the supervisor's start time (epoch s)."""

    status: UnitStatus
    started: float = 0.0
    format: int = FORMAT


class _Versioned(msgspec.Struct):
    format: int


Struct = TypeVar("Struct", FleetState, UnitFile)


def root() -> Path:
    """The folder of all fleets of this user."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "infctl"


def path(name: str) -> Path:
    """The folder of one fleet."""
    return root() / name


def unit_path(name: str, unit: str) -> Path:
    """The folder of one unit: its status and its logs."""
    return path(name) / "units" / unit


def create(folder: Path) -> Path:
    """Make a state folder, closed to other users. Raises MachineError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise MachineError("the state folder belongs to another user", where=str(folder))
        os.chmod(folder, 0o700)
    except OSError as error:
        raise MachineError(
            f"cannot make the state folder: {error.strerror}",
            where=str(folder),
            hint="Set XDG_STATE_HOME to a folder you may write to.",
        ) from error
    return folder


def socket_path(name: str) -> Path:
    """Where the router of a fleet puts its admin socket: beside the state, if that is no too
    long a path for a socket, else in a folder of this user's own under /tmp."""
    beside = path(name) / "router.sock"
    if len(os.fsencode(beside)) < SOCKET_PATH_MAX:
        return beside
    digest = hashlib.sha256(os.fsencode(beside)).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    if len(os.fsencode(folder)) > SOCKET_PATH_MAX - 60:
        folder = Path("/tmp")
    return create(folder / f"infctl-{os.getuid()}") / f"{digest}.sock"


def load(name: str) -> FleetState:
    """The fleet's state with every unit's newest status; nothing runs if there is no file.

    Raises InputError when a file is damaged or was written by a newer infctl.
    """
    file = path(name) / "fleet.json"
    data = _read(file)
    if data is None:
        return FleetState(profile=name)
    fleet = _decode(data, FleetState, file, name)
    units = tuple(_newest(name, unit) for unit in fleet.units)
    return msgspec.structs.replace(fleet, units=units)


def load_unit(name: str, unit: str) -> UnitFile | None:
    """What a unit's supervisor wrote last, or None. Raises InputError as `load` does."""
    file = unit_path(name, unit) / "status.json"
    data = _read(file)
    return None if data is None else _decode(data, UnitFile, file, name)


def save(fleet: FleetState) -> None:
    """Replace the fleet's state. Raises MachineError."""
    folder = create(path(fleet.profile))
    write(folder / "fleet.json", msgspec.json.encode(fleet))


def write(file: Path, data: bytes) -> None:
    """Replace a file whole, readable by its owner alone. Raises MachineError."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        temporary.replace(file)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise MachineError(f"cannot be written: {error.strerror}", where=str(file)) from error


def ask_for_restart(name: str, unit: str, request: RestartRequest) -> None:
    """Leave word for a unit's supervisor; a newer request replaces one it has not read. Raises
    MachineError."""
    write(unit_path(name, unit) / RESTART_FILE, msgspec.json.encode(request))


def private(file: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for files that their owner alone may read."""
    return os.open(file, flags, 0o600)


@contextmanager
def lock(name: str) -> Iterator[bool]:
    """Hold the fleet for as long as the context lasts; False if another command holds it.

    The system gives the lock back when the process ends, however it ends.
    """
    file = create(path(name)) / "lock"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(f"cannot be opened: {error.strerror}", where=str(file)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def started(pid: int) -> float:
    """When a process started (epoch s), 0 if there is none that runs (a zombie does not)."""
    import psutil

    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, ValueError):
        return 0.0


def alive(pid: int, since: float) -> bool:
    """Whether the process that had this pid and start time still runs."""
    return pid > 0 and since > 0 and abs(started(pid) - since) < 1.0


def _newest(name: str, unit: UnitStatus) -> UnitStatus:
    newest = load_unit(name, unit.name)
    if newest is None or newest.status.revision != unit.revision:
        return unit
    status = newest.status
    if status.state != STOPPED and not alive(status.supervisor_pid, newest.started):
        return msgspec.structs.replace(status, state=STOPPED, phase=STOPPED, pids=())
    return status


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"cannot be read: {error.strerror}", where=str(file)) from error


def _decode(data: bytes, kind: type[Struct], file: Path, name: str) -> Struct:
    try:
        found = msgspec.json.decode(data, type=_Versioned).format
        if found > FORMAT:
            raise InputError(
                f"has format {found}, written by a newer infctl; this one knows {FORMAT}",
                where=str(file),
                hint="Use the infctl that wrote it, or upgrade this one.",
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InputError(
            f"the state file is damaged: {error}",
            where=str(file),
            hint=f"When nothing of {name} runs any more, remove it: rm {file}",
        ) from error
