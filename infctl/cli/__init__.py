"""The command line: one module a verb, imported when the verb runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infctl import __version__
from infctl.cli.group import BrokenPipe, LazyGroup

if TYPE_CHECKING:
    from infctl.errors import InfctlError

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_BUG = 70

VERBS: dict[str, tuple[str, str]] = {
    "up": ("infctl.cli.up", "Run a whole fleet on this machine, or measure it with --bench."),
    "router": ("infctl.cli.router", "Route OpenAI requests to endpoints, in the foreground."),
    "route": ("infctl.cli.route", "Show the route table of a profile."),
    "bench": ("infctl.cli.bench", "Send a workload to an endpoint and measure."),
    "sim": ("infctl.cli.sim", "Simulate a fleet and its policies in virtual time."),
    "calibrate": ("infctl.cli.calibrate", "Measure an engine and fit its timing model."),
    "profile": ("infctl.cli.profile", "List, validate, show and start profiles."),
    "plugin": ("infctl.cli.plugin", "List, describe and start plugins."),
}
"""Verb: the module whose `app` it is, and its line in the help."""


class Root(LazyGroup):
    """infctl itself."""

    verbs = VERBS


app = typer.Typer(
    cls=Root,
    help="Operations toolkit for cloud-native LLM inference: one profile, every verb.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"infctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere on the line.")
    ] = False,
) -> None: ...


def main() -> None:
    """The `infctl` command."""
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Closed ones (`>&-`) are None, and their numbers would go to the next files we open."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code (docs/cli.md); errors go to stderr."""
    arguments, debug = _without_debug(arguments)
    try:
        typer.main.get_command(app).main(list(arguments), prog_name="infctl")
    except SystemExit as error:
        return _code(error.code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipe:
        # What is left in the buffer has nowhere to go: keep Python from trying again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        return _report(error)
    return 0


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [a for a in arguments[:end] if a != "--debug"]
    return [*options, *arguments[end:]], len(options) < end


def _code(code: Any) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def _report(error: Exception) -> int:
    from infctl.errors import InfctlError

    if isinstance(error, InfctlError):
        print(_message(error), file=sys.stderr)
        return error.exit_code
    print(
        f"{_red('infctl: this is a bug:')} {type(error).__name__}: {error}\n"
        "  Run the command again with --debug to see where, and report it with that output.",
        file=sys.stderr,
    )
    return EXIT_BUG


def _message(error: InfctlError) -> str:
    """`error: ` and each problem on a line of its own; what belongs to one is indented."""
    text = f"{error.where}: {error.message}" if error.where else error.message
    lines = [f"{_red('error:')} {line}" for line in getattr(error, "lines", None) or [text]]
    return "\n".join([*lines, f"  {error.hint}"] if error.hint else lines)


def _red(text: str) -> str:
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[1;31m{text}\x1b[0m" if colour else text
