"""The Actuator seam: make units exist. observe() → units, plan() → diff, apply(diff)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from infctl.engine import UnitSpec

if TYPE_CHECKING:
    from collections.abc import Callable


class DesiredUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that should run: its place in the profile and how to start it.

    `spec.port` (and the other ports) are 0 where the actuator is to choose. `models` holds the
    names the router answers to. `revision` is a digest of everything that needs a restart to
    change.
    """

    name: str
    pool: str
    cluster: str
    role: str
    engine: str
    models: tuple[str, ...]
    revision: str
    spec: UnitSpec
    rtt_ms: float = 0.0


class UnitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A unit as it is. `state` is a State value or `stopped`; `phase` is for people."""

    name: str
    pool: str
    cluster: str
    role: str
    engine: str
    models: tuple[str, ...]
    revision: str
    generation: int
    state: str
    phase: str
    url: str
    rtt_ms: float = 0.0
    kv_capacity_tokens: int = 0
    supervisor_pid: int = 0
    pids: tuple[int, ...] = ()
    restarts: int = 0
    logs: tuple[str, ...] = ()
    error: str | None = None


RESTART_FILE = "restart.json"
"""In a unit's folder: a RestartRequest its supervisor has not read yet."""


class RestartRequest(msgspec.Struct, frozen=True):
    """What a router leaves for a unit's supervisor: this `generation` of the unit should be
    restarted, because of `reason`; `check`: only if it answers the supervisor's probes no better.
    """

    generation: int
    reason: str
    check: bool = False


class Diff(msgspec.Struct, frozen=True):
    """What has to change; empty tuples mean nothing to do."""

    start: tuple[DesiredUnit, ...] = ()
    stop: tuple[str, ...] = ()
    restart: tuple[DesiredUnit, ...] = ()

    @property
    def empty(self) -> bool:
        """True when observed and desired agree."""
        return not (self.start or self.stop or self.restart)


class Actuator(Protocol):
    """A target on which units can run."""

    def observe(self) -> tuple[UnitStatus, ...]:
        """The units that exist now."""
        ...

    def plan(self, desired: tuple[DesiredUnit, ...]) -> Diff:
        """What separates the observed from the desired."""
        ...

    def apply(self, diff: Diff, progress: Callable[[UnitStatus], None] | None = None) -> None:
        """Make it so; `progress` is told of every change of a unit. Raises MachineError or
        TargetError, having left nothing half-started behind."""
        ...
