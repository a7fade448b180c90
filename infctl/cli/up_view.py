"""What `infctl up` shows: a live table on a terminal, now and then a line elsewhere, or JSON."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.live import Live
    from rich.table import Table

    from infctl.actuator import UnitStatus

_LINE_S = 10.0
_COLUMNS = ("endpoint", "state", "running", "waiting", "KV %", "hit rate", "TTFT p50/p99", "tok/s")


class Snapshot(msgspec.Struct, frozen=True):
    """The fleet at a moment. `figures` is the admin API's /v1/fleet, None if it did not answer."""

    profile: str
    url: str
    units: tuple[UnitStatus, ...]
    figures: dict[str, Any] | None


class View(Protocol):
    """Something to watch a fleet on."""

    def unit(self, status: UnitStatus) -> None:
        """A unit changed while the fleet starts."""
        ...

    def ready(self, profile: str, url: str) -> None:
        """The fleet serves now."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """About once a second."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


def view(as_json: bool) -> View:
    """The view for standard output as it is."""
    if as_json:
        return JsonView()
    return TableView() if sys.stdout.isatty() else LineView()


class JsonView:
    """One JSON document a line: the whole state, about once a second."""

    def unit(self, status: UnitStatus) -> None:
        """Nothing: the state is printed once there is a fleet."""

    def ready(self, profile: str, url: str) -> None:
        """Nothing: the first state follows at once."""

    def show(self, snapshot: Snapshot) -> None:
        """Print the state."""
        print(msgspec.json.encode(snapshot).decode(), flush=True)

    def close(self) -> None:
        """Nothing is open."""


class LineView:
    """Plain lines: every change of a unit at the start, then the totals every ten seconds."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def unit(self, status: UnitStatus) -> None:
        """Print the unit's phase."""
        print(f"{status.name}: {status.phase}", flush=True)

    def ready(self, profile: str, url: str) -> None:
        """Print where the fleet serves."""
        print(f"{profile} is ready: {url}/v1", flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print one line of totals, now and then."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _LINE_S
        print(_summary(snapshot), flush=True)

    def close(self) -> None:
        """Nothing is open."""


class TableView:
    """A table that stays in place: units while they start, then endpoints with their figures."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()
        self._live: Live | None = None
        self._units: dict[str, UnitStatus] = {}
        self._started = time.monotonic()

    def unit(self, status: UnitStatus) -> None:
        """Show the unit's phase."""
        self._units[status.name] = status
        self._update(_start_table(list(self._units.values()), time.monotonic() - self._started))

    def ready(self, profile: str, url: str) -> None:
        """Print where the fleet serves, and make room for the table of endpoints."""
        self.close()
        took_s = time.monotonic() - self._started
        self._console.print(
            f"[bold]{profile}[/] is ready on [bold]{url}/v1[/] after {took_s:.0f} s"
        )
        self._console.print("[dim]Ctrl-C stops it.[/]")

    def show(self, snapshot: Snapshot) -> None:
        """Draw the endpoints anew."""
        self._update(fleet_table(snapshot))

    def close(self) -> None:
        """Leave the table as it is."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _update(self, table: Table) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)


def _start_table(units: Sequence[UnitStatus], seconds: float) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"starting · {seconds:.0f} s")
    for name in ("unit", "state", "phase"):
        table.add_column(name, style="bold" if name == "unit" else "")
    for unit in units:
        table.add_row(unit.name, _coloured(unit.state), unit.phase)
    return table


def fleet_table(snapshot: Snapshot) -> Table:
    """The endpoints with their figures, the totals, and what is wrong with units."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title_justify="left", caption_justify="left")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _COLUMNS[:2] else "right", no_wrap=True)
    figures = snapshot.figures or {"endpoints": [], "totals": {}}
    for row in figures["endpoints"]:
        table.add_row(row["id"], _coloured(row["state"]), *_cells(row))
    table.add_section()
    policy = figures.get("policy", "the router does not answer")
    table.add_row("fleet", f"[dim]{policy}[/]", *_cells(figures["totals"]), style="bold")
    troubles = [_trouble(unit) for unit in snapshot.units if unit.error]
    table.caption = "\n".join(troubles[:5]) or None
    return table


def _trouble(unit: UnitStatus) -> str:
    first = (unit.error or "").partition("\n")[0]
    return f"{unit.name}: {first}; {unit.phase}, {unit.restarts} restarts"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ttft = row.get("ttft_ms") or {}
    quantiles = [_number(ttft.get(key), "ms") for key in ("p50", "p99")]
    return (
        _number(row.get("running")),
        _number(row.get("waiting")),
        _share(row.get("kv_usage")),
        _share(row.get("hit_rate")),
        "/".join(quantiles) if ttft.get("p50") is not None else "–",
        _number(row.get("tokens_per_s")),
    )


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}".strip()


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


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
        f"KV {kv}, hit rate {hits}, TTFT p50/p99 {ttft}, {rate} tok/s"
    )
