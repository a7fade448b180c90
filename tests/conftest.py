"""In CI (INFCTL_CI=1) a skip is a failure, except the tests named in real/absent.toml.

Tests marked `process` start processes and wait for them; the others are the unit tests, whose time
has a budget. CI plays the same hypothesis examples every time, so that it fails for a change and
not for a draw; everywhere else they are drawn anew.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

ABSENT = Path(__file__).parent / "real" / "absent.toml"


def may_be_absent(test_id: str, absent: dict[str, str]) -> bool:
    """Whether a test, in any of its parametrisations, is named there."""
    return test_id.partition("[")[0] in absent


def absent_tests(file: Path = ABSENT) -> dict[str, str]:
    """Tests that may be absent in CI, by id, with the reason."""
    listed: dict[str, str] = tomllib.loads(file.read_text())["absent"]
    return listed


def fail_if_skipped(report: Any, test_id: str) -> None:
    """Turn a skip in CI into a failure that says so."""
    if os.environ.get("INFCTL_CI") != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return
    if may_be_absent(test_id, absent_tests()):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{reason}\nIn CI nothing may be skipped but what {ABSENT.name} names."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests, and fixtures that skip."""
    report = yield
    fail_if_skipped(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Modules that skip as a whole."""
    report = yield
    fail_if_skipped(report, collector.nodeid)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say in JUnit's file which tests start processes."""
    for item in items:
        if item.get_closest_marker("process"):
            item.user_properties.append(("process", True))
