"""What the actuator tells a unit's supervisor: one file."""

from __future__ import annotations

import msgspec

from infctl.actuator import UnitStatus
from infctl.engine import RankCommand


class RestartPolicy(msgspec.Struct, frozen=True):
    """After a failure the unit starts again in `first_s`, twice as long after each further one up
    to `max_s`; being ready for `steady_s` forgives them. A unit that was ready once is never given
    up: nobody is there at night to start it by hand."""

    first_s: float = 1.0
    max_s: float = 60.0
    steady_s: float = 60.0


class SupervisorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One unit to run: `status` is what it is before it starts, `folder` takes status and logs.

    `attached` units end when the supervisor's standard input does. `grace_s` passes between
    SIGTERM and SIGKILL. A ready unit is probed every `liveness_s`, which is also how long an answer
    may take; `liveness_failures` in a row and it is restarted. Where a router asks for a check it
    is `check_failures` in a row, `check_s` each.
    """

    status: UnitStatus
    ranks: tuple[RankCommand, ...]
    folder: str
    host: str
    port: int
    health_path: str
    attached: bool = True
    grace_s: float = 10.0
    start_s: float = 1800.0
    poll_s: float = 0.25
    poll_timeout_s: float = 10.0
    liveness_s: float = 5.0
    liveness_failures: int = 3
    check_s: float = 2.0
    check_failures: int = 2
    log_bytes_max: int = 16 * 1024 * 1024
    restart: RestartPolicy = RestartPolicy()
