"""`infctl router keys`: the API keys of a router."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from infctl.profile.keyfile import Key

app = typer.Typer(help="Add, list and remove API keys of a router.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The profile's routing.keys_file.")]


@app.command()
def add(
    file: File,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the key.")],
    tenant: Annotated[
        str | None, typer.Option(help="Whom requests are counted for; default: the name.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may ask for; repeat. Default: all.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(help="A priority of the profile, by name or index.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Limit, prompt and answer.")] = None,
    concurrent_requests: Annotated[int | None, typer.Option(help="Limit.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it ends: 2027-01-31T12:00:00Z.")
    ] = None,
) -> None:
    """Make a key and print it, this once: FILE keeps its digest alone.

    FILE is made if there is none, and is written whole, so comments in it are lost. A running
    router follows FILE."""
    import secrets
    import sys

    from infctl.profile.keyfile import digest

    key = f"sk-{secrets.token_urlsafe(32)}"
    fields = {
        "name": name,
        "sha256": digest(key),
        "tenant": tenant,
        "models": model or None,
        "priority": int(priority) if priority and priority.isdecimal() else priority,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent_requests": concurrent_requests,
        "expires": expires,
    }
    with _held(file):
        keys = _read(file) if file.exists() else []
        added = _key({k: v for k, v in fields.items() if v is not None}, keys)
        _write(file, [*keys, added])
    print(key)
    print(f"{name}: keep it now, it cannot be shown again", file=sys.stderr)


def _key(fields: dict[str, Any], keys: list[Key]) -> Key:
    from pydantic import ValidationError

    from infctl.errors import UsageError
    from infctl.profile.keyfile import Key

    if fields["name"] in {key.name for key in keys}:
        raise UsageError(f"there is a key {fields['name']!r} already", hint="Remove it first.")
    try:
        return Key.model_validate(fields)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False)[0]
        what = detail["msg"].removeprefix("Value error, ")
        raise UsageError(f"{detail['loc'][0]}: {what}") from None


@app.command("list")
def list_(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that FILE says.")] = False,
) -> None:
    """Show the keys of FILE with what they may do."""
    import json

    from rich.console import Console
    from rich.table import Table

    keys = _read(file)
    if as_json:
        print(json.dumps([key.model_dump() for key in keys], indent=2))
        return
    grid = Table(box=None, pad_edge=False)
    limits = ("REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT")
    for heading in ("NAME", "TENANT", "MODELS", "PRIORITY", *limits, "EXPIRES"):
        grid.add_column(heading, justify="right" if heading in limits else "left", overflow="fold")
    for key in keys:
        bounds = (key.requests_per_minute, key.tokens_per_minute, key.concurrent_requests)
        shown = ["-" if bound is None else f"{bound:,}" for bound in bounds]
        models = ", ".join(key.models) if key.models else "all"
        grid.add_row(
            key.name, key.tenant or key.name, models, str(key.priority), *shown, key.expires or "-"
        )
    Console(highlight=False).print(grid)


@app.command()
def remove(
    file: File, name: Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]
) -> None:
    """Take a key out of FILE.

    Requests that run under it go on; the next is refused."""
    from infctl.errors import InputError

    with _held(file):
        keys = _read(file)
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise InputError(f"there is no key {name!r}", where=str(file))
        _write(file, left)
    print(f"{name}: removed")


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Keep other commands from changing the file between reading and writing it. Its folder is
    locked, since the file itself is replaced."""
    import fcntl

    from infctl.errors import MachineError

    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(f"cannot be opened: {error.strerror}", where=str(file.parent)) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _read(file: Path) -> list[Key]:
    from infctl.profile.keyfile import read

    return read(file)


def _write(file: Path, keys: list[Key]) -> None:
    from infctl import state
    from infctl.profile.keyfile import text

    state.write(file, text(keys, as_json=file.suffix == ".json").encode())
