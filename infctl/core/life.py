"""What is known of one endpoint's life, and what may have to be done about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from infctl.core.breaker import Breaker
from infctl.core.fleet import State


class Cause(StrEnum):
    """Why an endpoint was ejected."""

    REFUSED = "refused"
    HUNG = "hung"
    PROBE = "probe"
    UNIT = "unit"
    ERRORS = "errors"
    OUTLIER = "outlier"
    SLOW = "slow"
    CANARY = "canary"
    OPERATOR = "operator"


class Move(msgspec.Struct, frozen=True):
    """Move an endpoint to `state`; `abandon`: what runs there moves on."""

    slot: int
    state: State
    reason: str
    cause: Cause | None = None
    abandon: bool = False


class Restart(msgspec.Struct, frozen=True):
    """Ask whoever runs the endpoint to restart it; `check`: only if it finds it mute as well."""

    slot: int
    reason: str
    check: bool = False


class Spared(msgspec.Struct, frozen=True):
    """An endpoint should be out but stays, so that not too many are."""

    slot: int
    reason: str


Effect = Move | Restart | Spared


class Life(msgspec.Struct):
    """What is known of one endpoint. Times are monotonic seconds.

    `held`: an operator took it out. `cause` is why it is out, None when it is not; `retry_at` when
    it may be tried again. `restart_reason` is a restart that waits for what runs there to end.
    `statistical`: it is out for reasons that count against the share of peers. `accepts_anew`: an
    operator resumed it after failed canaries, so what it answers now is the new truth.
    """

    since: float
    reason: str = "discovered"
    breaker: Breaker = msgspec.field(default_factory=Breaker)
    cause: Cause | None = None
    flaps: int = 0
    forgiven_at: float = 0.0
    retry_at: float = 0.0
    held: bool = False
    probe_failures: int = 0
    suspected: bool = False
    spared_until: float = 0.0
    slow_since: float = 0.0
    restart_reason: str | None = None
    statistical: bool = False
    accepts_anew: bool = False
