"""`infctl profile`: list, validate, show, init, schema."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl.errors import InputError, MachineError

if TYPE_CHECKING:
    from infctl.profile.document import Problem

app = typer.Typer(help="List, validate, show and start profiles.", no_args_is_help=True)

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: pools.chat.units.ready=3."),
]


class Format(StrEnum):
    """How a profile is printed."""

    YAML = "yaml"
    JSON = "json"


@app.command("list")
def list_() -> None:
    """List the shipped profiles and the timing models they can name."""
    from infctl.profile.crosscheck import shipped_timings
    from infctl.profile.load import load, shipped

    names = shipped()
    width = max(len(name) for name in names)
    print("Profiles")
    for name in names:
        print(f"  {name:<{width}}  {load(name).metadata.description}")
    print("\nTiming models (models[].timing)")
    for timing in shipped_timings():
        print(f"  {timing}")


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(metavar="PROFILE...", help="Names or files.")],
    sets: Sets = None,
) -> None:
    """Check profiles: every problem with its file, line and key. Exit code 3 if there is one."""
    from infctl.cli.profile_checks import load
    from infctl.profile.load import ProfileError

    problems: list[Problem] = []
    hint = None
    for ref in files:
        try:
            load(ref, sets or ())
            print(f"{ref}: good")
        except ProfileError as error:
            problems += error.problems
            hint = error.hint or hint
    if problems:
        raise ProfileError(problems, hint)


@app.command()
def show(
    ref: Annotated[str, typer.Argument(metavar="PROFILE", help="A name or a file.")],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="With what it extends, overrides and defaults.")
    ] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="Format.")] = Format.YAML,
    sets: Sets = None,
) -> None:
    """Print a profile: as it is written, or as infctl understands it."""
    from infctl.profile.load import load, read_text

    if resolved or sets:
        print(_dump(load(ref, sets or (), os.environ).model_dump(mode="json"), output))
    elif output is Format.YAML:
        print(read_text(ref), end="")
    else:
        import yaml

        print(_dump(yaml.safe_load(read_text(ref)), output))


def _dump(value: Any, output: Format) -> str:
    if output is Format.JSON:
        import json

        return json.dumps(value, indent=2, ensure_ascii=False)
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip()


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the new profile.")] = "fleet",
    base: Annotated[
        str, typer.Option("--from", metavar="PROFILE", help="The shipped profile to start from.")
    ] = "demo",
    directory: Annotated[Path, typer.Option("--dir", help="Where to write it.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write NAME.yaml, a commented profile to change."""
    from infctl.cli.profile_init import starter

    target = directory / f"{name}.yaml"
    text = starter(name, base)
    try:
        with target.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise InputError(
            "is there already", where=str(target), hint="Give another name, or --force."
        ) from error
    except OSError as error:
        raise MachineError(f"cannot be written: {error.strerror}", where=str(target)) from error
    print(f"wrote {target}\n  infctl profile validate {target}\n  infctl up {target}")


@app.command()
def schema() -> None:
    """Print the JSON schema of profiles, for editors."""
    import json

    from infctl.profile.schema import schema as profile_schema

    print(json.dumps(profile_schema(), indent=2))
