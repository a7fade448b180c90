"""`infctl profile`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from infctl import cli
from infctl.profile.load import load, read_text, shipped


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "list"]) == 0
    out = capsys.readouterr().out
    for name in shipped():
        assert f"{name} " in out
    assert "deepseek-v3-8xh200-tp8" in out


def test_validate_good_and_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "validate", "demo", "kimi-k2"]) == 0
    assert capsys.readouterr().out == "demo: good\nkimi-k2: good\n"
    bad = tmp_path / "bad.yaml"
    bad.write_text("extends: demo\nslo: {ttft: 1}\n")
    worse = tmp_path / "worse.yaml"
    worse.write_text("extends: demo\nrouting: {picker: bets}\n")
    assert cli.run(["profile", "validate", str(bad), "demo", str(worse)]) == 3
    captured = capsys.readouterr()
    assert captured.out == "demo: good\n"
    assert f"{bad}:2: slo.ttft: is no key of a profile (did you mean ttft_ms?)" in captured.err
    assert f"error: {worse}:2: routing.picker: there is no picker named 'bets'" in captured.err
    assert "(did you mean best?)" in captured.err


def test_show_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "show", "demo"]) == 0
    assert capsys.readouterr().out == read_text("demo")
    assert cli.run(["profile", "show", "demo", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["name"] == "demo"


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_show_resolved_can_be_loaded_again(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["profile", "show", "demo", "--set", "slo.ttft_ms=9", "--resolved", "-o", output]
    assert cli.run(arguments) == 0
    file = tmp_path / f"x.{output}"
    file.write_text(capsys.readouterr().out)
    assert load(str(file)) == load("demo", ["slo.ttft_ms=9"])


@pytest.mark.parametrize("base", shipped())
def test_init_writes_a_profile_with_comments(
    base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["profile", "init", "chat", "--from", base, "--dir", str(tmp_path)]
    assert cli.run(arguments) == 0
    file = tmp_path / "chat.yaml"
    profile = load(str(file))
    assert profile.metadata.name == "chat"
    assert profile.engine == load(base).engine
    assert file.read_text().startswith("# chat: a fleet.")
    assert file.read_text().count("#") > 6
    assert cli.run(arguments) == 3
    assert "is there already" in capsys.readouterr().err
    assert cli.run([*arguments, "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["Bad Name"], 3, "cannot be a profile's name"),
        (["x", "--from", "dmeo"], 3, "did you mean demo?"),
        (["x", "--dir", "/no/such/dir"], 4, "cannot be written"),
    ],
)
def test_init_refusals(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["profile", "init", *arguments]) == code
    assert said in capsys.readouterr().err


def test_schema_describes_the_shipped_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "schema"]) == 0
    properties = json.loads(capsys.readouterr().out)["properties"]
    for name in shipped():
        assert set(yaml.safe_load(read_text(name))) <= set(properties)
