"""Keep a session on one endpoint."""

from typing import ClassVar, Literal

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from infctl.plugin import Column, Fleet, Request


class SessionAffinity(msgspec.Struct, frozen=True):
    """Rendezvous hashing of session × endpoint: 1 for the session's home, falling for the next
    ones, so that an endpoint that leaves moves only its own sessions. Requests without a session
    score 0 everywhere."""

    unit: ClassVar[Literal["share", "ms"]] = "share"

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        column = np.zeros(len(fleet))
        if not request.session:
            return column
        seed = xxh3_64_intdigest(request.session.encode())
        for slot, endpoint in fleet:
            column[slot] = xxh3_64_intdigest(endpoint.id.encode(), seed=seed) / 2**64
        return column / max(float(column.max()), 1e-12)
