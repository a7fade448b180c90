"""Faults an emulated engine can be told to have."""

from __future__ import annotations

from typing import Literal

import msgspec

from infctl.errors import InputError


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong, and when.

    `die`: the process exits at once. `stall`: connections are taken, tokens stop. `slow`: engine
    time passes `factor` times slower. `error`: requests are answered with `status`, running ones
    end in an error. `none`: all is well again. It strikes once `after_tokens` more tokens are
    out and ends after `for_s` engine seconds (None: never).
    """

    mode: Literal["die", "stall", "slow", "error", "none"]
    after_tokens: int = 0
    factor: float = 4.0
    status: int = 500
    for_s: float | None = None


def parse_fault(text: bytes) -> Fault:
    """A fault from JSON. Raises InputError."""
    try:
        fault = msgspec.json.decode(text, type=Fault)
    except msgspec.DecodeError as error:
        raise InputError(
            f"not a fault: {error}",
            hint='for example {"mode": "stall", "after_tokens": 100, "for_s": 5}',
        ) from None
    if not 400 <= fault.status <= 599:
        raise InputError("a fault's status must be between 400 and 599")
    if not 0 < fault.factor <= 1e6 or fault.after_tokens < 0:
        raise InputError("a fault's factor must be positive, its after_tokens not negative")
    if fault.for_s is not None and not 0 < fault.for_s <= 86_400:
        raise InputError("a fault's for_s must be within a day")
    return fault
