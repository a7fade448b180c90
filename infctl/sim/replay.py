"""The same Director again, from an event log: does it do the same?"""

from __future__ import annotations

import mmap
from random import Random
from typing import TYPE_CHECKING

import msgspec

from infctl import compose, provenance
from infctl.core.eventlog import Ended, EventLog, NotALog, Policy, described, encoded
from infctl.core.events import RequestArrived
from infctl.core.scheduling import Choice, Pipeline
from infctl.errors import InputError, MachineError
from infctl.settings import director_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from infctl.core.director import Director
    from infctl.core.eventlog import Record
    from infctl.core.fleet import Column, Fleet
    from infctl.core.request import Request
    from infctl.profile.model import Profile


class Difference(msgspec.Struct, frozen=True):
    """The first record whose outcome is another one now; `at_s` after the log's beginning."""

    record: int
    at_s: float
    event: str
    recorded: str
    replayed: str


class Replay(msgspec.Struct):
    """What came of a replay. `commands` were compared; `ended` is why the log ends, empty where it
    was cut off; `left` bytes behind its last whole record; `notes` is what may explain differences.
    `choices` were made, of which `otherwise` would not have been made by another policy."""

    events: int = 0
    requests: int = 0
    commands: int = 0
    span_s: float = 0.0
    difference: Difference | None = None
    ended: str = ""
    left: int = 0
    damage: str = ""
    notes: list[str] = []
    choices: int = 0
    otherwise: int = 0


class _Compared(Pipeline):
    """A pipeline that asks another policy each time what it would have chosen: with the same draws,
    from the same state, which only the recorded policy's choices change."""

    def __init__(self, own: Pipeline, other: Pipeline, found: Replay) -> None:
        super().__init__(own.filters, own.scorers, own.picker, own.name)
        self._other = other
        self._found = found
        self._draws = Random()

    def decide(
        self,
        request: Request,
        fleet: Fleet,
        cached: Column,
        random: Random,
        excluded: Sequence[int] = (),
    ) -> Choice | None:
        self._draws.setstate(random.getstate())
        choice = super().decide(request, fleet, cached, random, excluded)
        if choice is not None:
            self._found.choices += 1
            self._found.otherwise += choice.slot != self._elsewhere(
                request, fleet, cached, excluded
            )
        return choice

    def _elsewhere(
        self, request: Request, fleet: Fleet, cached: Column, excluded: Sequence[int]
    ) -> int | None:
        """The slot that the other policy chooses; None where it chooses none, or raises."""
        try:
            found = self._other.decide(request, fleet, cached, self._draws, excluded)
        except Exception:  # what it would have cost is that request
            return None
        return None if found is None else found.slot


def replay(path: Path, policy: str | None = None) -> Replay:
    """Replay a log, to its end or the first difference; `policy`: count what that one would have
    chosen otherwise. Raises InputError and MachineError."""
    with _mapped(path) as data:
        try:
            log = EventLog(data)
        except NotALog as error:
            raise InputError(f"not an event log: {error}", where=str(path)) from error
        return _Run(log, policy).run()


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise MachineError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise InputError("not an event log: it is empty", where=str(path)) from error


class _Run:
    def __init__(self, log: EventLog, policy: str | None) -> None:
        self._log = log
        self._policy = policy
        self._found = Replay(notes=provenance.differences(log.header))
        self._director = provenance.director(log.header)
        if policy is not None:
            self._compare(provenance.profile_of(log.header.policy))

    def run(self) -> Replay:
        found, log = self._found, self._log
        for record in log:
            if isinstance(record.item, Policy):
                self._change(record.item)
            elif not isinstance(record.item, Ended):
                found.difference = self._differs(record)
                if found.difference is not None:
                    break
        found.ended, found.left, found.damage = log.ended, log.left, log.damage
        return found

    def _differs(self, record: Record) -> Difference | None:
        found, at_s = self._found, record.now - self._log.header.started_s
        found.events += 1
        found.requests += isinstance(record.item, RequestArrived)
        found.span_s = at_s
        outcome, count = _outcome(self._director, record)
        found.commands += count
        if outcome == record.outcome:
            return None
        event = f"{type(record.item).__name__} {_subject(record.item)}".strip()
        return Difference(record.number, at_s, event, described(record.outcome), described(outcome))

    def _change(self, policy: Policy) -> None:
        """A reload, as the router did it."""
        profile = provenance.profile_of(policy)
        self._found.notes += [n for n in provenance.changed(policy) if n not in self._found.notes]
        settings = director_settings(profile.routing, self._log.header.speed)
        self._director.configure(compose.pipeline(profile), settings)
        if self._policy is not None:
            self._compare(profile)

    def _compare(self, profile: Profile) -> None:
        """From now on, ask the other policy too."""
        director, settings = self._director, self._director.settings
        other = compose.pipeline(compose.with_policy(profile, self._policy or ""))
        director.configure(_Compared(director.pipeline, other, self._found), settings)


def _outcome(director: Director, record: Record) -> tuple[bytes, int]:
    """What the Director does now, as a record has it, and how many commands that is."""
    try:
        commands = director.handle(record.item, record.now)  # type: ignore[arg-type]
    except Exception as error:  # a policy's, as it may have been where it was recorded
        return encoded(type(error).__name__), 0
    return encoded(commands), len(commands)


def _subject(item: object) -> str:
    """Whom an event is about."""
    request = getattr(item, "request", None)
    endpoint = getattr(item, "endpoint", None)
    for holder, field in ((request, "id"), (endpoint, "id"), (item, "request_id")):
        if holder is not None and hasattr(holder, field):
            return str(getattr(holder, field))
    return str(getattr(item, "endpoint_id", ""))


def lines(found: Replay) -> Iterator[str]:
    """What came of a replay, for people."""
    yield (
        f"{found.events:,} events, {found.requests:,} requests in {found.span_s:,.1f} s; "
        f"{found.commands:,} commands compared"
    )
    if found.difference is not None:
        d = found.difference
        yield f"first difference: record {d.record:,} at {d.at_s:.3f} s, {d.event}"
        yield f"  recorded: {d.recorded}"
        yield f"  replayed: {d.replayed}"
        yield from (f"  note: {note}" for note in found.notes)
        return
    yield "identical"
    yield from (f"note: {note}" for note in found.notes)
    if found.damage:
        yield f"note: {found.damage}; the rest, {found.left:,} bytes, is left out"
    elif found.left:
        yield f"note: the log was cut off; {found.left:,} bytes of a record are left out"
    elif not found.ended:
        yield "note: the log was cut off: the router was killed, or still runs"
    elif found.ended != "the router ended":
        yield f"note: recording ended early: {found.ended}"
    if found.choices:
        share = found.otherwise / found.choices
        yield f"another choice: {found.otherwise:,} of {found.choices:,} ({share:.1%})"
