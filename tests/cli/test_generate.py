"""What is generated is up to date: `python -m infctl.cli.generate` renews it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.cli import VERBS
from infctl.cli.generate import generated, main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generated()


def test_files_in_the_repository_are_current(files: dict[str, str]) -> None:
    for name, content in files.items():
        assert (ROOT / name).read_text(encoding="utf-8") == content, f"{name} is out of date"


def test_the_reference_holds_every_verb_and_exit_code(files: dict[str, str]) -> None:
    text = files["docs/cli.md"]
    for verb in VERBS:
        assert f"\n## `infctl {verb}`\n" in text
    for code in (0, 1, 2, 3, 4, 5, 10, 11, 70, 130):
        assert f"\n| {code} | " in text


def test_main_writes_them_all(tmp_path: Path, files: dict[str, str]) -> None:
    main(tmp_path)
    assert {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()} == set(files)
