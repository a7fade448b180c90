"""`infctl router keys`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infctl.cli import run
from infctl.profile.keyfile import digest, read


def keys(*arguments: str | Path) -> int:
    return run(["router", "keys", *map(str, arguments)])


def test_a_key_is_printed_once_and_kept_as_a_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    limits = ["--requests-per-minute", "5", "--tokens-per-minute", "1000"]
    limits += ["--concurrent-requests", "2", "--expires", "2099-01-31"]
    who = ["--tenant", "acme", "--model", "m", "--model", "n", "--priority", "batch"]
    assert keys("add", file, "one", *limits, *who) == 0
    shown = capsys.readouterr()
    key = shown.out.strip()
    assert len(key) >= 40
    assert key not in shown.err + file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    (found,) = read(file)
    assert found.sha256 == digest(key)
    assert (found.tenant, found.models, found.priority) == ("acme", ["m", "n"], "batch")
    assert (found.requests_per_minute, found.tokens_per_minute) == (5, 1000)
    assert (found.concurrent_requests, found.expires) == (2, "2099-01-31")
    assert keys("add", file, "two", "--priority", "3") == 0
    other = capsys.readouterr().out.strip()
    assert other != key
    assert [k.priority for k in read(file)] == ["batch", 3]


def test_listing_and_removing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    for name in ("one", "two"):
        assert keys("add", file, name) == 0
    assert json.loads(file.read_text())["keys"][1]["name"] == "two"
    capsys.readouterr()
    assert keys("list", file) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "NAME",
        "one",
        "two",
    ]
    assert keys("remove", file, "one") == 0
    capsys.readouterr()
    assert keys("list", file, "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["two"]
    assert keys("remove", file, "one") == 3


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["one"], 2, "a key 'one' already"),
        (["Not A Name"], 2, "name"),
        (["two", "--expires", "soon"], 2, "is no time"),
        (["two", "--tenant", "a b"], 2, "tenant"),
        (["two", "--requests-per-minute", "0"], 2, "requests_per_minute"),
    ],
)
def test_what_cannot_be_added_changes_nothing(
    more: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    assert keys("add", file, "one") == 0
    before = file.read_bytes()
    capsys.readouterr()
    assert keys("add", file, *more) == code
    shown = capsys.readouterr()
    assert (shown.out, words in shown.err) == ("", True)
    assert file.read_bytes() == before


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    assert keys("list", tmp_path / "none") == 4
    assert keys("add", tmp_path / "none" / "keys.yaml", "one") == 4
    file = tmp_path / "keys.yaml"
    file.write_text("keys: []")
    file.chmod(0o644)
    assert keys("add", file, "one") == 4
    file.chmod(0o600)
    file.write_text("keys: [{}]")
    assert keys("list", file) == 3


@pytest.mark.process
def test_keys_added_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    command = [sys.executable, "-m", "infctl", "router", "keys", "add", str(file)]
    running = [
        subprocess.Popen([*command, f"k{i}"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        for i in range(6)
    ]
    assert [process.wait(60) for process in running] == [0] * 6
    assert {key.name for key in read(file)} == {f"k{i}" for i in range(6)}
