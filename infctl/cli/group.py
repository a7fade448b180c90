"""The two kinds of command groups: verbs imported on use, and an implicit `run`."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    # Typer brings its own Click from 0.20 on and needed the package before.
    Context = Any

RUN = "run"
_COMPLETION = ("install_completion", "show_completion")


class _Verb(TyperCommand):
    """A verb's name and help; the module behind it is imported when the verb is used."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary, short_help=summary)
        self._module = module

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the real command: what follows goes on with that one."""
        real = self.real()
        real.name = self.name
        return real.make_context(info_name, args, parent=parent, **extra)

    def real(self) -> Any:
        """The verb's own command. Completion is the root's to install, not each verb's."""
        command = typer.main.get_command(importlib.import_module(self._module).app)
        command.params = [p for p in command.params if p.name not in _COMPLETION]
        return command


class LazyGroup(TyperGroup):
    """A group of verbs, listed without importing any."""

    verbs: ClassVar[dict[str, tuple[str, str]]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: _Verb(name, *entry) for name, entry in self.verbs.items()})

    def invoke(self, ctx: Context) -> Any:
        """Run a verb. A reader that went away ends it, with the code of a broken pipe."""
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
            return value
        except BrokenPipeError as error:
            raise BrokenPipe from error


class BrokenPipe(Exception):
    """A broken pipe on its way past Typer, which would make it exit code 1."""


class RunGroup(TyperGroup):
    """A verb with sub-verbs of which `run` may be left out: `infctl scale demo --once`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Put `run` in front of what names no sub-verb."""
        first = args[0] if args else ""
        asks_help = first in ctx.help_option_names
        if first not in self.commands and not asks_help and not (not args and self.no_args_is_help):
            args = [RUN, *args]
        return super().parse_args(ctx, args)
