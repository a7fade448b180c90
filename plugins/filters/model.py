"""Only endpoints that serve the model."""

from collections.abc import Hashable

import msgspec

from infctl.plugin import Fleet, Mask, Request


class Model(msgspec.Struct, frozen=True):
    """Drop endpoints that do not serve the model or alias asked for."""

    def key(self, request: Request) -> Hashable:
        return request.model

    def allow(self, request: Request, fleet: Fleet) -> Mask:
        return fleet.mask(e is not None and request.model in e.models for e in fleet.slots)
