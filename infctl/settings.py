"""What of a profile's routing the Director goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.core.director import Settings

if TYPE_CHECKING:
    from infctl.profile.model import Routing


def director_settings(routing: Routing, speed: float) -> Settings:
    """Where engines run `speed` times faster than life, waiting is as much shorter."""
    flow = routing.flow
    return Settings(
        attempts_max=routing.attempts_max,
        retry_share=routing.retry_share,
        queue_max=flow.queue_max,
        queue_s=flow.queue_s / speed,
        priorities=tuple(flow.priorities),
        backlog_s=Settings().backlog_s / speed,
        hedge_share=routing.hedge_share,
        slow_start_s=routing.health.slow_start_s / speed,
    )
