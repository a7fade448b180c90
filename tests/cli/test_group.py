"""A verb with an implicit `run`."""

from __future__ import annotations

import pytest
import typer

from infctl.cli.group import RunGroup

app = typer.Typer(cls=RunGroup, add_completion=False)


@app.command()
def run(what: str = "nothing", once: bool = False) -> None:
    print(f"run {what} {once}")


@app.command()
def history() -> None:
    print("history")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "run nothing False"),
        (["--once"], "run nothing True"),
        (["--what", "x"], "run x False"),
        (["run", "--once"], "run nothing True"),
        (["history"], "history"),
    ],
)
def test_run_may_be_left_out(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typer.main.get_command(app).main(arguments, standalone_mode=False)
    assert capsys.readouterr().out.strip() == said


def test_help_is_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    typer.main.get_command(app).main(["--help"], standalone_mode=False)
    assert "history" in capsys.readouterr().out
