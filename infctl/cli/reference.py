"""docs/cli.md and the shell completions, from the commands themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import typer

from infctl.cli import EXIT_BROKEN_PIPE, EXIT_BUG, EXIT_INTERRUPTED, app
from infctl.errors import (
    EXIT_CHANGES,
    EXIT_DONE,
    EXIT_UNDECIDED,
    EXIT_VERDICT_NO,
    InputError,
    MachineError,
    TargetError,
    UsageError,
)

SHELLS = ("bash", "zsh", "fish")

_HEAD = """\
# The command line

<!-- Generated from infctl/cli: `python -m infctl.cli.generate`. -->

`infctl --install-completion` installs completion for your shell; packagers find the files in
`completions/`. `--debug`, anywhere on the line, shows the traceback of an error. `NO_COLOR` is
respected, and colour, tables in place and progress bars are for terminals alone.

## Exit codes

| code | meaning |
|---|---|
"""

_CODES = {
    EXIT_DONE: "done",
    EXIT_VERDICT_NO: "the verdict is no: unhealthy, a gate or a drill failed, requests failed",
    UsageError.exit_code: "usage: the command line is wrong",
    InputError.exit_code: "bad input: a profile, a trace, a state file",
    MachineError.exit_code: "this machine: a port is taken, a binary or a permission is missing",
    TargetError.exit_code: "the target: an engine, a cluster or a service failed",
    EXIT_CHANGES: "changes are pending or were made",
    EXIT_UNDECIDED: "undecided, or blocked",
    EXIT_BUG: "a bug in infctl",
    EXIT_INTERRUPTED: "interrupted before the work was done",
    EXIT_BROKEN_PIPE: "who read the output went away",
}


def render() -> str:
    """docs/cli.md."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in _CODES.items())
    root = typer.main.get_command(app)
    return _HEAD + codes + "".join(_sections("infctl", root))


def completion(shell: str) -> str:
    """The completion script of a shell, as `--show-completion` prints it."""
    script = subprocess.run(
        [sys.executable, "-c", "import infctl.cli; infctl.cli.main()"],
        env={**os.environ, "_INFCTL_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    return "\n".join(line.rstrip() for line in script.strip().splitlines()) + "\n"


def _sections(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    usage = f"    {name} {_usage(command, bool(names))}".rstrip()
    yield f"\n## `{name}`\n\n{_help(command)}\n\n{usage}\n{_parameters(command)}"
    for sub in names:
        found = command.get_command(context, sub)
        if found is not None and not found.hidden:
            yield from _sections(f"{name} {sub}", found.real() if hasattr(found, "real") else found)


def _help(command: Any) -> str:
    return "\n".join(line.strip() for line in (command.help or "").strip().splitlines())


def _usage(command: Any, has_commands: bool) -> str:
    """Options, arguments and command, spelled here so that every Typer spells them alike."""
    arguments = [_argument(p) for p in command.params if p.param_type_name == "argument"]
    return " ".join(["[OPTIONS]", *arguments, *(["COMMAND"] if has_commands else [])])


def _argument(parameter: Any) -> str:
    name = _name(parameter) + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper().strip("[].")


def _parameters(command: Any) -> str:
    rows = [_row(p) for p in command.params if not getattr(p, "hidden", False)]
    if not rows:
        return ""
    return "\n| | |\n|---|---|\n" + "".join(rows)


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{_name(parameter)}`"
    text = (getattr(parameter, "help", None) or "").strip()
    default = parameter.default
    if default not in (None, False, "", ()) and not callable(default):
        text += f" Default: `{default}`."
    return f"| {names} | {text.strip()} |\n"
