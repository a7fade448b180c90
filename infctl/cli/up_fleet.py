"""A whole fleet on this machine: units, then the router; stopped the other way round."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from infctl import compose, state
from infctl.actuator import Diff
from infctl.actuators.local import Interrupted, LocalActuator
from infctl.cli.up_checks import check_engine, prepare_model
from infctl.cli.up_router import RouterProcess, check_port
from infctl.errors import InfctlError, MachineError, TargetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infctl.actuator import DesiredUnit, UnitStatus
    from infctl.cli.up_signals import Signals
    from infctl.profile.model import Profile

_ENGINE_EXIT_S = 10.0
_UNITS_MAX = 512


class Place(msgspec.Struct, frozen=True):
    """Where and how a fleet runs. `speed` is for emulated engines; `emulate` makes them all so."""

    host: str = "127.0.0.1"
    port: int = 8000
    emulate: bool = False
    speed: float = 1.0
    seed: int = 0


class LocalFleet:
    """One fleet from start to stop. The caller holds its state's lock.

    `source` is how a router's command line names the profile, so that the router can read it
    again; without it the router gets the profile as it is, and so it stays.
    """

    def __init__(
        self,
        profile: Profile,
        place: Place,
        signals: Signals,
        source: Sequence[str] | None = None,
    ) -> None:
        self.profile = profile
        self.name = profile.metadata.name
        self.place = place
        self.router: RouterProcess | None = None
        self.signals = signals
        self._source = source
        self._actuator = LocalActuator(self.name, pause=signals.wait)

    def prepare(self) -> tuple[DesiredUnit, ...]:
        """The units to start, after a look at all that can be known to fail. Starts nothing.

        Raises UsageError, InputError, MachineError.
        """
        place = self.place
        compose.pipeline(self.profile)
        desired = compose.desired_units(self.profile, emulate=place.emulate, speed=place.speed)
        _check_count(len(desired))
        real = [unit for unit in desired if unit.engine != "emulated"]
        if real and place.speed != 1:
            raise UsageError(
                "real engines run at their own speed", hint="Leave out --speed, or add --emulate."
            )
        check_port(place.host, place.port)
        emulable = all(model.timing for model in self.profile.models)
        for python in {unit.spec.python for unit in real}:
            check_engine(self.profile.engine, python, emulable)
        for path in {unit.spec.model_path for unit in real}:
            prepare_model(path)
        return desired

    def start(
        self, progress: Callable[[UnitStatus], None], desired: tuple[DesiredUnit, ...] | None = None
    ) -> str:
        """Start everything and return the router's URL. `desired` is what `prepare` returned.

        Raises Interrupted when told to stop meanwhile, or what went wrong. Call `stop` in any case.
        """
        desired = self.prepare() if desired is None else desired
        state.save(self._state())
        # What an earlier command left is not ours to adopt: it ends with that command's pipe.
        left = tuple(unit.name for unit in self._actuator.observe())
        self._actuator.apply(Diff(start=desired, stop=left), progress)
        return self._start_router()

    def _named(self) -> Sequence[str]:
        if self._source is not None:
            return self._source
        file = state.path(self.name) / "profile.json"
        state.write(file, self.profile.model_dump_json().encode())
        return [str(file)]

    def _start_router(self) -> str:
        place = self.place
        arguments = [*self._named(), "--host", place.host, "--port", str(place.port)]
        arguments += ["--speed", str(place.speed), "--seed", str(place.seed)]
        self.router = RouterProcess(self.name, arguments)
        if not self.router.wait_ready(self.signals.wait):
            raise Interrupted
        pid = self.router.process.pid
        running = state.RouterState(
            pid, state.started(pid), self.router.url, str(self.router.admin)
        )
        state.save(msgspec.structs.replace(state.load(self.name), router=running))
        return self.router.url

    def check(self) -> None:
        """Raise TargetError if the fleet can serve no more: its router or every unit ended."""
        assert self.router is not None
        if not self.router.running:
            raise self.router.error()
        self.router.bound_log()
        units = self.units()
        if units and all(unit.state == state.STOPPED for unit in units):
            raise TargetError(
                f"every unit was given up; {units[0].name}: {units[0].error}",
                hint=f"Its log: {units[0].logs[0]}",
            )

    def units(self) -> tuple[UnitStatus, ...]:
        """The units as they are."""
        return self._actuator.statuses()

    def figures(self) -> dict[str, Any] | None:
        """The router's view of the fleet (admin API, /v1/fleet); None if it does not answer."""
        return self.router.fleet() if self.router else None

    def endpoints(self) -> tuple[str, ...]:
        """Ids of all endpoints the router knows, or of the units if it does not tell."""
        figures = self.figures()
        if figures is None:
            return tuple(unit.name for unit in self.units())
        return tuple(row["id"] for row in figures["endpoints"])

    def stop(self) -> None:
        """Stop the router, which drains, and then the units. Another signal makes it hurry."""
        router, self.router = self.router, None
        if router is not None:
            before = self.signals.count
            router.stop(
                self.profile.routing.drain_s + _ENGINE_EXIT_S,
                lambda seconds: self.signals.wait_more(seconds, before),
            )
        self._actuator.stop_all()
        state.save(state.FleetState(profile=self.name))

    def _state(self) -> state.FleetState:
        units = state.load(self.name).units
        pid = os.getpid()
        return state.FleetState(
            profile=self.name, units=units, owner=pid, owner_started=state.started(pid)
        )


def _check_count(units: int) -> None:
    """Refuse a fleet that would swamp this machine with processes."""
    if units > _UNITS_MAX:
        raise MachineError(
            f"{units:,} units are too many for one machine, which takes at most {_UNITS_MAX}",
            where="pools",
            hint="Run fewer of them here: --set pools.NAME.units.ready=8.",
        )


@contextmanager
def owned(name: str) -> Iterator[None]:
    """Hold the fleet's lock. Raises MachineError that tells what runs when another holds it."""
    with state.lock(name) as held:
        if not held:
            raise _already_running(name)
        yield


def _already_running(name: str) -> InfctlError:
    fleet = state.load(name)
    url = f" on {fleet.router.url}" if fleet.router else ""
    pid = f" (pid {fleet.owner})" if fleet.owner else ""
    return MachineError(
        f"the fleet {name} runs already{url}{pid}",
        where=str(state.path(name)),
        hint="Stop it first, or give this one another name: --set metadata.name=other.",
    )
