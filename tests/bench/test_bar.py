import io

import pytest
from rich.console import Console

from infctl.bench import bar
from infctl.runs.spec import Progress


def test_it_shows_counts_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100)
    monkeypatch.setattr(bar, "Console", lambda **_: console)
    with bar.progress_bar("round-robin") as progress:
        progress(Progress(30, 100, 2, 7))
    text = shown.getvalue()
    assert "round-robin" in text
    assert "30/100" in text
    assert "7 open, 2 failed" in text


def test_it_is_silent_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with bar.progress_bar("x") as progress:
        progress(Progress(1, 2, 0, 1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == ""
