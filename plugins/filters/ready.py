"""Only endpoints that take traffic."""

from collections.abc import Hashable

import msgspec

from infctl.plugin import Fleet, Mask, Request


class Ready(msgspec.Struct, frozen=True):
    """Drop endpoints that are starting, draining or ejected."""

    def key(self, request: Request) -> Hashable:
        return None

    def allow(self, request: Request, fleet: Fleet) -> Mask:
        return fleet.ready
