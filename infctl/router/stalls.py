"""Endpoints whose streams have all fallen silent.

A stopped or hung engine keeps its connections open, so nothing but silence tells. Silence beyond
what the endpoint's own pace explains has it probed at once; if it answers the probe and still says
nothing for several times as long, it is ejected all the same, and its streams go on elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infctl.router.driver import Router

_HUNG = 4.0
"""Times its patience after which an endpoint that answers probes has hung all the same."""


class Stalls:
    """When each endpoint was last heard, and what follows from silence."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.heard: dict[int, float] = {}
        self._suspected: dict[int, float] = {}

    def check(self, now: float) -> None:
        """Look at every endpoint that has work; call a few times a second."""
        director = self._router.director
        for slot, heard in list(self.heard.items()):
            if director.fleet.slots[slot] is None or director.inflight.own(slot) <= 0:
                self.heard.pop(slot)
                self._suspected.pop(slot, None)
                continue
            silent_ms = director.latency.silent_ms(slot, heard * 1000.0, now * 1000.0)
            patience_ms = director.latency.patience_ms(slot)
            if silent_ms > patience_ms:
                self._silent(slot, silent_ms, patience_ms, now)

    def _silent(self, slot: int, silent_ms: float, patience_ms: float, now: float) -> None:
        waiting = [leg for leg in self._router.at(slot) if leg.awaits_tokens]
        if not waiting:
            return
        reason = f"no token from any of its streams for {silent_ms / 1000:.1f} s"
        if silent_ms > patience_ms * _HUNG and any(leg.begun for leg in waiting):
            self._router.lives.hung(slot, f"hung: {reason}")
        elif now - self._suspected.get(slot, 0.0) > patience_ms / 1000.0:
            self._suspected[slot] = now
            self._router.suspect(slot, reason)
