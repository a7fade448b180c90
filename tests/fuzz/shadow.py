"""A second Director that is told what an event log holds, and has to do and to know the same.

The fleet's columns are compared, too, for what a policy that ignores them would not show.
"""

from __future__ import annotations

from infctl import provenance
from infctl.core.commands import Command
from infctl.core.director import Director
from infctl.core.eventlog import EventLog, Records, described, encoded, header_line
from infctl.core.events import Event
from infctl.profile.model import Profile


class Shadow:
    """Goes along with a router's Director, event by event."""

    def __init__(self, director: Director, profile: Profile, seed: int) -> None:
        header = provenance.header(profile, seed=seed, speed=1.0, wall_s=0.0, now=0.0)
        self.director = director
        self.other = provenance.director(header)
        self._head = header_line(header)
        self._records = Records()

    def handle(self, event: Event, now: float) -> list[Command]:
        """What the Director does. Raises AssertionError where the other one does not."""
        self._records.begin(now, event)
        commands = self.director.handle(event, now)
        self._records.end(commands)
        (record,) = EventLog(self._head + self._records.take())
        again = encoded(self.other.handle(record.item, record.now))  # type: ignore[arg-type]
        if again != record.outcome:
            raise AssertionError(f"{event}: {described(record.outcome)}, then {described(again)}")
        cells, others = self.director.fleet.cells, self.other.fleet.cells
        differ = [name for name in cells if cells[name].tobytes() != others[name].tobytes()]
        if differ:
            raise AssertionError(f"{event}: other columns of the fleet: {differ}")
        return commands
