"""What `infctl up` shows: a live table on a terminal, now and then a line elsewhere, or JSON."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table

    from infctl.actuator import UnitStatus

Row = TypeVar("Row")

_LINE_S = 10.0
_COLUMNS = ("endpoint", "state", "run", "wait", "KV %", "hit %", "TTFT p50/p99", "tok/s")
_NAME_MAX = 20
_TROUBLES_MAX = 5
_FIXED_LINES = 4  # the columns' names, the totals, the policy, the cursor


class Snapshot(msgspec.Struct, frozen=True):
    """The fleet at a moment. `figures` is the admin API's /v1/fleet, None if it did not answer."""

    profile: str
    url: str
    units: tuple[UnitStatus, ...]
    figures: dict[str, Any] | None


class View(Protocol):
    """Something to watch a fleet on."""

    def starting(self, profile: str, what: str) -> None:
        """The fleet's start begins; `what` it is made of."""
        ...

    def unit(self, status: UnitStatus) -> None:
        """A unit changed while the fleet starts."""
        ...

    def ready(self, profile: str, url: str, end: str) -> None:
        """The fleet serves now; `end` says what will end it."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """About once a second."""
        ...

    def stopping(self) -> None:
        """No more figures will come: the fleet stops."""
        ...

    def stopped(self) -> None:
        """Nothing runs any more."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; may come at any time, and more than once."""
        ...


def view(as_json: bool) -> View:
    """The view for standard output as it is."""
    if as_json:
        return JsonView()
    return TableView() if sys.stdout.isatty() else LineView()


class JsonView:
    """One JSON document a line: the whole state, about once a second."""

    def starting(self, profile: str, what: str) -> None:
        """Nothing: the state is printed once there is a fleet."""

    def unit(self, status: UnitStatus) -> None:
        """Nothing: the state is printed once there is a fleet."""

    def ready(self, profile: str, url: str, end: str) -> None:
        """Nothing: the first state follows at once."""

    def show(self, snapshot: Snapshot) -> None:
        """Print the state."""
        print(msgspec.json.encode(snapshot).decode(), flush=True)

    def stopping(self) -> None:
        """Nothing: the states just end."""

    def stopped(self) -> None:
        """Nothing: the states just end."""

    def close(self) -> None:
        """Nothing is open."""


class LineView:
    """Plain lines: every change of a unit at the start, then the totals every ten seconds."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def starting(self, profile: str, what: str) -> None:
        """Print what is started."""
        print(f"{profile}: starting {what}", flush=True)

    def unit(self, status: UnitStatus) -> None:
        """Print the unit's phase."""
        print(f"{status.name}: {status.phase}", flush=True)

    def ready(self, profile: str, url: str, end: str) -> None:
        """Print where the fleet serves, and until when."""
        print(f"{profile} is ready: {url}/v1", flush=True)
        print(f"{profile}: {end}", flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print one line of totals, now and then."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _LINE_S
        print(_summary(snapshot), flush=True)

    def stopping(self) -> None:
        """Print that it stops."""
        print("stopping", flush=True)

    def stopped(self) -> None:
        """Print that it stopped."""
        print("stopped", flush=True)

    def close(self) -> None:
        """Nothing is open."""


class TableView:
    """A table that stays in place: units while they start, then endpoints with their figures.

    It never grows beyond the terminal: what scrolls away cannot be drawn anew.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._terminal = Terminal()
        self._live: Live | None = None
        self._units: dict[str, UnitStatus] = {}
        self._started = time.monotonic()
        self._heads: tuple[str, ...] = ()

    def starting(self, profile: str, what: str) -> None:
        """Print what is started."""
        self._console.print(f"Starting [bold]{profile}[/]: {what}")

    def unit(self, status: UnitStatus) -> None:
        """Show the unit's phase."""
        self._units[status.name] = status
        seconds = time.monotonic() - self._started
        self._update(start_table(list(self._units.values()), seconds, self._console.height))

    def ready(self, profile: str, url: str, end: str) -> None:
        """Say where the fleet serves and what will end it, above the table of endpoints."""
        if self._live is not None:
            self._live.transient = True  # the units' phases are of no more interest
        self.close()
        took_s = time.monotonic() - self._started
        where = f"[bold]{profile}[/] is ready on [bold]{url}/v1[/] after {took_s:.0f} s"
        self._heads = (where, f"[dim]{end}[/]")

    def show(self, snapshot: Snapshot) -> None:
        """Draw the endpoints anew."""
        from rich.console import Group

        height = self._console.height - len(self._heads)
        self._update(Group(*self._heads, fleet_table(snapshot, height)))

    def stopping(self) -> None:
        """Leave the table as it is, and say that the fleet stops."""
        self.close()
        self._console.print("[dim]stopping …[/]")

    def stopped(self) -> None:
        """Say that it stopped."""
        self._console.print("stopped")

    def close(self) -> None:
        """Leave the table as it is."""
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        finally:
            self._terminal.restore()

    def _update(self, shown: RenderableType) -> None:
        from rich.live import Live

        if self._live is None:
            self._terminal.quiet()
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(shown, refresh=True)


class Terminal:
    """The terminal's echo of `^C`, which would push the table a line further."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def quiet(self) -> None:
        """Keep control characters from being shown, where there is a terminal."""
        with suppress(ImportError, OSError, ValueError):
            import termios

            number = sys.stdin.fileno()
            with suppress(termios.error):
                before = termios.tcgetattr(number)
                changed = [*before]
                changed[3] = before[3] & ~termios.ECHOCTL
                termios.tcsetattr(number, termios.TCSANOW, changed)
                self._before = before

    def restore(self) -> None:
        """As it was before."""
        before, self._before = self._before, None
        if before is not None:
            import termios

            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)


def start_table(units: Sequence[UnitStatus], seconds: float, height: int) -> Table:
    """Units with their phases, those that are not ready yet first where not all fit."""
    from rich.table import Table

    ready = sum(unit.state == "ready" for unit in units)
    title = f"{ready} of {len(units)} ready · {seconds:.0f} s"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for name in ("unit", "state", "phase"):
        table.add_column(name, style="bold" if name == "unit" else "", no_wrap=True)
    shown = _fitting(units, height - 4, lambda unit: unit.state)
    for unit in shown:
        table.add_row(unit.name, _coloured(unit.state), unit.phase)
    if more := len(units) - len(shown):
        table.add_row(f"… and {more:,} more", style="dim")
    return table


def fleet_table(snapshot: Snapshot, height: int = 1000) -> Group:
    """The endpoints with their figures, the totals, and what is wrong with units.

    At most `height` lines and 80 columns: endpoints that do not fit are counted, the totals and
    what is wrong stay.
    """
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    figures = snapshot.figures or {"endpoints": [], "totals": {}}
    troubles = [_trouble(unit) for unit in snapshot.units if unit.error][:_TROUBLES_MAX]
    table = Table(box=None, pad_edge=False)
    table.add_column(_COLUMNS[0], max_width=_NAME_MAX, overflow="ellipsis")  # gives way alone
    table.add_column(_COLUMNS[1], no_wrap=True)
    for name in _COLUMNS[2:]:
        table.add_column(name, justify="right", no_wrap=True)
    rows = figures["endpoints"]
    shown = _fitting(rows, height - _FIXED_LINES - 2 * len(troubles), lambda row: row["state"])
    for row in shown:
        table.add_row(row["id"], _coloured(row["state"]), *_cells(row))
    if more := len(rows) - len(shown):
        table.add_row(f"… and {more:,} more", style="dim")
    ready = f"{sum(row['state'] == 'ready' for row in rows):,}/{len(rows):,}"
    table.add_row("fleet", ready, *_cells(figures["totals"]), style="bold")
    said = f"policy {figures['policy']}" if snapshot.figures else "the router does not answer"
    return Group(table, f"[dim]{said}[/]", *(f"[red]{escape(text)}[/]" for text in troubles))


def _fitting(rows: Sequence[Row], lines: int, state: Callable[[Row], str]) -> Sequence[Row]:
    """As many as fit in so many lines with one that counts the others; the ready ones last."""
    if len(rows) <= lines:
        return rows
    return sorted(rows, key=lambda row: state(row) == "ready")[: max(1, lines - 1)]


def _trouble(unit: UnitStatus) -> str:
    first = (unit.error or "").partition("\n")[0]
    return f"{unit.name}: {first}; {unit.phase}, {unit.restarts} restarts"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ttft = row.get("ttft_ms") or {}
    return (
        _number(row.get("running")),
        _number(row.get("waiting")),
        _percent(row.get("kv_usage")),
        _percent(row.get("hit_rate")),
        "–" if ttft.get("p50") is None else "/".join(_time(ttft.get(k)) for k in ("p50", "p99")),
        _number(row.get("tokens_per_s")),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f}"


def _time(value_ms: float | None) -> str:
    """At most five characters: `850ms`, `2.1s`, `135s`."""
    if value_ms is None:
        return "–"
    if value_ms < 999.5:
        return f"{value_ms:.0f}ms"
    return f"{value_ms / 1000:.1f}s" if value_ms < 99_950 else f"{value_ms / 1000:.0f}s"


def _coloured(state: str) -> str:
    colour = {"ready": "green", "ejected": "red", "stopped": "red"}.get(state, "yellow")
    return f"[{colour}]{state}[/]"


def _summary(snapshot: Snapshot) -> str:
    figures = snapshot.figures
    if figures is None:
        return f"{snapshot.profile}: the router does not answer"
    rows, totals = figures["endpoints"], figures["totals"]
    ready = sum(row["state"] == "ready" for row in rows)
    running, waiting, kv, hits, ttft, rate = _cells(totals)
    return (
        f"{snapshot.profile}: {ready}/{len(rows)} ready, running {running}, waiting {waiting}, "
        f"KV {kv} %, hit rate {hits} %, TTFT p50/p99 {ttft}, {rate} tok/s"
    )
