"""What a skip means in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
ABSENT = tomllib.loads((HERE / "real/absent.toml").read_text())["absent"]

SKIPS = """
import pytest

pytestmark = pytest.mark.process


def test_runs():
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_listed(n):
    pytest.skip("listed")

def test_unlisted():
    pytest.skip("no such thing here")

@pytest.fixture
def missing():
    pytest.skip("no fixture here")

def test_in_set_up(missing):
    pass

@pytest.mark.skipif(True, reason="marked so")
def test_by_mark():
    pass

@pytest.mark.xfail
def test_known_to_fail():
    assert False
"""


@pytest.fixture
def outcome(tmp_path: Path) -> Path:
    """A suite of its own that skips in every way."""
    tests = tmp_path / "tests"
    (tests / "real").mkdir(parents=True)
    shutil.copy(HERE / "conftest.py", tests)
    (tests / "real/absent.toml").write_text('[absent]\n"tests/test_a.py::test_listed" = "Why."\n')
    (tests / "test_a.py").write_text(SKIPS)
    (tests / "test_b.py").write_text('import pytest\npytest.importorskip("no_such_module")\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(folder: Path, ci: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib"],
        env={**os.environ, "INFCTL_CI": ci, "PYTEST_ADDOPTS": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


def test_outside_ci_a_skip_is_a_skip(outcome: Path) -> None:
    assert "1 passed, 6 skipped, 1 xfailed" in run(outcome, "")


def test_in_ci_only_what_is_listed_may_be_skipped(outcome: Path) -> None:
    out = run(outcome, "1")
    assert "1 error" in out  # the module
    (outcome / "tests/test_b.py").unlink()
    out = run(outcome, "1")
    assert "1 passed, 2 skipped, 1 xfailed" in out
    assert "no such thing here" in out
    assert "absent.toml" in out


@pytest.mark.parametrize("test", ABSENT)
def test_what_may_be_absent_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
    assert ABSENT[test].endswith(".")
