"""Answers that engines keep: `/v1/responses` that name an earlier one go where that one is.

An engine holds its responses in its own memory, so a request with `previous_response_id` makes
sense at that endpoint alone. Ids are read from the first bytes of answers as they pass.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from infctl.router.leg import Leg
from infctl.router.proxy import Exchange

if TYPE_CHECKING:
    from infctl.core.fleet import Endpoint

PATH = b"/v1/responses"

_KEPT_MAX = 50_000
_OPENING_MAX = 4096
_ID = re.compile(rb'"id"\s*:\s*"([^"\\\s]{1,256})"')
_FRAMING = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")


class Responses:
    """Which endpoint gave which response; the least recently used are forgotten.

    Ids are kept per tenant: some engines let clients choose them, and nobody is to move another's.
    """

    def __init__(self, kept_max: int = _KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._givers: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._givers)

    def given(self, tenant: str, response_id: str, endpoint: Endpoint) -> None:
        """An endpoint gave this response."""
        key = (tenant, response_id)
        self._givers[key] = (endpoint.id, endpoint.generation)
        self._givers.move_to_end(key)
        if len(self._givers) > self._kept_max:
            self._givers.popitem(last=False)

    def giver(self, tenant: str, response_id: str) -> tuple[str, int] | None:
        """Id and generation of the endpoint that gave it; None where that is not known."""
        found = self._givers.get((tenant, response_id))
        if found is not None:
            self._givers.move_to_end((tenant, response_id))
        return found


class ResponsesLeg(Leg):
    """A leg that reads the response's id from the opening of the answer."""

    __slots__ = ("_opening",)

    _opening: bytes | None

    def on_data(self, data: bytes) -> None:
        opening = getattr(self, "_opening", b"")
        if opening is not None:
            self._opening = self._listen(opening + data)
        super().on_data(data)

    def _listen(self, opening: bytes) -> bytes | None:
        """What to look at again with more of the answer; None when there is nothing to wait for."""
        if self.response is None or self.response.status != 200:
            return None
        plain = _FRAMING.sub(b"", opening) if self.response.chunked else opening
        found = _ID.search(plain, 0, _OPENING_MAX)
        if found is None:
            return opening if len(opening) < _OPENING_MAX else None
        exchange = self.exchange
        response_id = found[1].decode("latin-1")
        exchange.router.responses.given(exchange.request.tenant, response_id, self.endpoint)
        return None


class ResponsesExchange(Exchange):
    """A request for a response."""

    __slots__ = ()

    leg_type = ResponsesLeg
