"""Only endpoints of the role the leg asks for."""

from collections.abc import Hashable

import msgspec

from infctl.plugin import Fleet, Mask, Request


class Role(msgspec.Struct, frozen=True):
    """Drop endpoints of another role (unified, prefill, decode)."""

    def key(self, request: Request) -> Hashable:
        return request.role

    def allow(self, request: Request, fleet: Fleet) -> Mask:
        return fleet.mask(e is not None and e.role == request.role for e in fleet.slots)
