"""`infctl sim replay` as a command: what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from infctl import cli, compose, provenance
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.eventlog import Ended, Records, header_line
from infctl.core.fleet import Endpoint, State
from infctl.core.request import Request
from infctl.profile.model import Profile


def write(path: Path, seed: int = 1, then: int = 1) -> Path:
    """A log of 50 requests, decided with the seed `then`."""
    profile = Profile.model_validate(
        {
            "metadata": {"name": "t"},
            "models": [{"name": "m"}],
            "pools": [{"name": "p"}],
            "routing": {"picker": "power-of-two"},
        }
    )
    header = provenance.header(profile, seed=seed, speed=1.0, wall_s=0.0, now=10.0)
    director, records = Director(compose.pipeline(profile), Random(then)), Records()
    joined = [Endpoint(unit=f"u{n}", url="", models=("m",), pool="p") for n in range(4)]
    events: list[Any] = [ev.EndpointJoined(endpoint, State.READY) for endpoint in joined]
    events += [ev.RequestArrived(Request(id=f"r{n}", model="m")) for n in range(50)]
    for number, event in enumerate(events):
        now = 10.0 + number / 100
        records.begin(now, event)
        records.end(director.handle(event, now))
    records.begin(0.0, Ended("the router ended"))
    records.end([])
    path.write_bytes(header_line(header) + records.take())
    return path


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    code = cli.run(["sim", "replay", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_identical_is_0(tmp_path: Path, capsys: Any) -> None:
    log = str(write(tmp_path / "a"))
    said = f"{log}: 54 events, 50 requests in 0.5 s; 50 commands compared\n  identical\n"
    assert run(capsys, log) == (0, said, "")
    code, out, _ = run(capsys, log, "--policy", "round-robin")
    assert (code, "another choice: " in out, " of 50 (" in out) == (0, True, True)
    assert run(capsys, log, "--policy", "no-such")[0] == 3


def test_a_difference_is_1_and_has_its_place(tmp_path: Path, capsys: Any) -> None:
    same, other = str(write(tmp_path / "a")), str(write(tmp_path / "b", seed=2))
    code, out, _ = run(capsys, other, same)
    assert code == 1
    assert "  first difference: record " in out
    assert "recorded: Dispatch(request_id='r" in out
    assert out.endswith("identical\n")


def test_no_log_is_3_and_no_file_4(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "x").write_text("hello")
    code, _, err = run(capsys, str(tmp_path / "x"))
    assert (code, "not an event log" in err) == (3, True)
    assert run(capsys, str(tmp_path / "y"))[0] == 4
    log = write(tmp_path / "a")
    log.write_bytes(log.read_bytes().replace(b'"version":1,', b'"version":2,', 1))
    code, _, err = run(capsys, str(log))
    assert (code, "it has format 2, and this infctl reads format 1" in err) == (3, True)
