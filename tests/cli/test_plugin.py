"""`infctl plugin`: what `new` writes works and passes the conformance kit."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from infctl import cli
from infctl.cli.plugin_new import SEAMS

TEMPLATES = Path(cli.__file__).parent / "templates"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plugin", "list", "picker"]) == 0
    out = capsys.readouterr().out
    assert "round-robin" in out
    assert "predicted-ttft" not in out
    assert cli.run(["plugin", "list", "pickr"]) == 2
    assert "did you mean picker?" in capsys.readouterr().err


def test_describe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plugin", "describe", "queue-depth"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("queue-depth: scorer from infctl\n")
    assert "limit: whole number = 128" in out
    path = "infctl_plugins.scorers.queue_depth:QueueDepth"
    assert cli.run(["plugin", "describe", path, "--seam", "scorer"]) == 0
    assert "limit: whole number = 128" in capsys.readouterr().out


def test_list_tells_in_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plugin", "list"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "queue-depth infctl Prefer endpoints with fewer waiting requests" in out
    assert "code infctl Code completion: medium prompts, very short answers" in out


def test_describe_takes_the_seam_first_and_has_plain_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["plugin", "describe", "workload", "code"]) == 0
    out = capsys.readouterr().out
    assert "rate_rps: number, > 0, ≤ 1,000,000 = 2.57" in out
    assert "shared_tokens: whole number, 0 to 1,000,000 = 0" in out
    assert cli.run(["plugin", "describe", "vllm"]) == 0
    assert "the engine's own flags" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["queue-dept"], "did you mean queue-depth?"), (["a:B"], "--seam")],
)
def test_describe_refusals(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plugin", "describe", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.process
def test_new_packages_pass_their_own_tests(tmp_path: Path) -> None:
    for seam in SEAMS:
        assert cli.run(["plugin", "new", seam, f"my-{seam}", str(tmp_path / seam)]) == 0
        project = tomllib.loads((tmp_path / seam / "pyproject.toml").read_text())
        entry = project["project"]["entry-points"][f"infctl.{seam}"]
        assert entry == {f"my-{seam}": f"my_{seam}:My{seam.capitalize()}"}
    folders = [str(tmp_path / seam) for seam in SEAMS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"{len(SEAMS)} passed" in done.stdout, done.stdout


def test_a_new_plugin_can_be_used_and_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plugin", "new", "scorer", "free-cache", str(tmp_path / "x")]) == 0
    monkeypatch.syspath_prepend(str(tmp_path / "x"))
    capsys.readouterr()
    assert cli.run(["plugin", "describe", "free_cache:FreeCache", "--seam", "scorer"]) == 0
    assert "sharpness: number = 1.0" in capsys.readouterr().out
    arguments = ["profile", "validate", "demo", "--set"]
    assert cli.run([*arguments, "routing.scorers=['free_cache:FreeCache']"]) == 0
    wrong = "routing.scorers=[{type: 'free_cache:FreeCache', sharpnes: 2}]"
    assert cli.run([*arguments, wrong]) == 3
    assert "did you mean sharpness?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["handler", "x"], 2, "no new 'handler' can be written"),
        (["scorer", "Bad_Name"], 2, "cannot be a plugin's name"),
        (["scorer", "x", "."], 3, "is there already"),
    ],
)
def test_new_refusals(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plugin", "new", *arguments]) == code
    assert said in capsys.readouterr().err


def test_every_seam_has_a_template() -> None:
    assert {f.name.removesuffix(".py.txt") for f in TEMPLATES.iterdir()} == set(SEAMS)
