"""The state on disk: private, whole, versioned, and true about what lives."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from infctl import state
from infctl.actuator import UnitStatus
from infctl.errors import InputError, MachineError


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def unit(**changes: object) -> UnitStatus:
    status = UnitStatus(
        name="a-0",
        pool="a",
        cluster="local",
        role="unified",
        engine="emulated",
        models=("m",),
        revision="r1",
        generation=1,
        state="ready",
        phase="ready",
        url="http://127.0.0.1:1",
        supervisor_pid=os.getpid(),
    )
    return msgspec.structs.replace(status, **changes)


def write_unit(status: UnitStatus, started: float) -> None:
    folder = state.create(state.unit_path("chat", status.name))
    file = state.UnitFile(status, started)
    state.write(folder / "status.json", msgspec.json.encode(file))


def test_nothing_runs_where_there_is_no_file() -> None:
    assert state.load("chat") == state.FleetState(profile="chat")


def test_what_is_saved_is_loaded_and_private() -> None:
    router = state.RouterState(1, 2.0, "http://127.0.0.1:8000", "/x/router.sock")
    fleet = state.FleetState(profile="chat", units=(unit(),), router=router)
    state.save(fleet)
    assert state.load("chat") == fleet
    folder = state.path("chat")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "fleet.json").stat().st_mode) == 0o600
    assert [f.name for f in folder.iterdir()] == ["fleet.json"]


def test_a_units_own_file_is_newer() -> None:
    state.save(state.FleetState(profile="chat", units=(unit(state="starting"),)))
    write_unit(unit(phase="serving"), state.started(os.getpid()))
    (found,) = state.load("chat").units
    assert (found.state, found.phase) == ("ready", "serving")


def test_the_file_of_another_revision_does_not_count() -> None:
    state.save(state.FleetState(profile="chat", units=(unit(state="starting", revision="r2"),)))
    write_unit(unit(), state.started(os.getpid()))
    assert state.load("chat").units[0].state == "starting"


def test_a_unit_whose_supervisor_is_gone_is_stopped() -> None:
    state.save(state.FleetState(profile="chat", units=(unit(),)))
    write_unit(unit(pids=(5,)), state.started(os.getpid()) - 100)  # the pid is another's now
    (found,) = state.load("chat").units
    assert (found.state, found.pids) == (state.STOPPED, ())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\x00", b'{"format": 1}', b'{"format":"x"}']
)
def test_damaged_files_say_how_to_mend(data: bytes) -> None:
    file = state.create(state.path("chat")) / "fleet.json"
    file.write_bytes(data)
    with pytest.raises(InputError) as error:
        state.load("chat")
    assert f"rm {file}" in str(error.value)


def test_a_newer_format_is_refused() -> None:
    file = state.create(state.path("chat")) / "fleet.json"
    file.write_text(json.dumps({"format": 2, "something": "new"}))
    with pytest.raises(InputError, match="newer infctl"):
        state.load("chat")


def test_one_holds_the_lock() -> None:
    with state.lock("chat") as first:
        assert first
        with state.lock("chat") as second:
            assert not second
        with state.lock("other") as other:
            assert other
    with state.lock("chat") as again:
        assert again


def test_a_lock_that_cannot_be_opened() -> None:
    (state.create(state.path("chat")) / "lock").mkdir()
    with pytest.raises(MachineError, match="cannot be opened"), state.lock("chat"):
        pass


def test_a_socket_path_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for home in ("/tmp/s", str(tmp_path / ("x" * 120))):
        monkeypatch.setenv("XDG_STATE_HOME", home)
        paths = {state.socket_path(name) for name in ("one", "two")}
        assert len(paths) == 2
        assert all(len(os.fsencode(p)) < 104 for p in paths)


def test_a_process_is_its_pid_and_start() -> None:
    since = state.started(os.getpid())
    assert state.alive(os.getpid(), since)
    assert not state.alive(os.getpid(), since - 5)
    assert not state.alive(0, since)
    assert state.started(2**22 + 1) == 0.0
