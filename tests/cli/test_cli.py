"""The command as a whole: help, versions, errors and exit codes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infctl import __version__, cli
from infctl.errors import InputError, MachineError, TargetError, UsageError

EMPTY = "import typer\napp = typer.Typer()\n@app.command()\ndef main() -> None: ...\napp()"


def cpu_s(command: Sequence[str]) -> float:
    """The least CPU time of some runs."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(4))


@pytest.mark.process
def test_help_costs_little_more_than_an_empty_program() -> None:
    empty = cpu_s([sys.executable, "-c", EMPTY, "--help"])
    ours = cpu_s([sys.executable, "-m", "infctl", "--help"])
    assert ours < 2 * empty


def test_help_imports_no_verb() -> None:
    code = (
        "import sys, infctl.cli; infctl.cli.run(['--help']); "
        "print('LOADED', sorted(m for m in sys.modules if m.startswith('infctl')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    loaded = done.stdout.split("LOADED ")[1]
    assert loaded.strip() == "['infctl', 'infctl.cli', 'infctl.cli.group']"
    for verb in cli.VERBS:
        assert verb in done.stdout


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_loads_and_helps(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"infctl {verb}" in out
    assert "--install-completion" not in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"infctl {__version__}\n"


@pytest.mark.parametrize("arguments", [["profil"], ["up", "--nonsense"], ["profile", "shwo"]])
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_verb_is_met_with_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["profil"])
    assert "Did you mean 'profile'?" in capsys.readouterr().err


class Raises:
    """Stands in for the root command."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def main(self, *_: Any, **__: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("what"), 2, "error: what\n"),
        (InputError("what", where="f.yaml:3"), 3, "error: f.yaml:3: what\n"),
        (MachineError("what", hint="Do this."), 4, "error: what\n  Do this.\n"),
        (TargetError("one\ntwo"), 5, "error: one\ntwo\n"),
        (ZeroDivisionError("oops"), 70, "infctl: this is a bug: ZeroDivisionError: oops\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(11), 11, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_exit_codes(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli.typer.main, "get_command", lambda _: Raises(error))
    assert cli.run(["x"]) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert "Traceback" not in err
    assert bool(err) == bool(said)


@pytest.mark.parametrize("arguments", [["--debug", "x"], ["x", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.typer.main, "get_command", lambda _: Raises(InputError("what")))
    assert cli.run(arguments) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error: what" in err


def test_no_debug_behind_two_dashes() -> None:
    assert cli._without_debug(["x", "--", "--debug"]) == (["x", "--", "--debug"], False)
    assert cli._without_debug(["--debug", "x", "--", "y"]) == (["x", "--", "y"], True)


@pytest.mark.parametrize(("no_colour", "tty"), [(False, True), (True, True), (False, False)])
def test_colour_is_for_terminals_that_want_it(
    no_colour: bool, tty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty, raising=False)
    assert ("\x1b[" in cli._message(InputError("what"))) == (tty and not no_colour)


def test_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "infctl", "profile", "schema"],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=30,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.process
def test_closed_standard_streams_are_nowhere() -> None:
    command = f"exec {sys.executable} -m infctl profile list >&- <&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.process
def test_completion_knows_verbs_and_options(tmp_path: Path) -> None:
    def complete(line: str) -> list[str]:
        env = {
            **os.environ,
            "_INFCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        command = [sys.executable, "-c", "import infctl.cli; infctl.cli.main()"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        return done.stdout.split()

    assert {"profile", "plugin"} <= set(complete("infctl p"))
    assert {"show", "schema", "validate"} <= set(complete("infctl profile "))
    assert "--bench" in complete("infctl up --be")
