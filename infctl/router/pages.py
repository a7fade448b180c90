"""What the router answers itself: health, models, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.router import models
from infctl.router.wire import JSON, error_body

if TYPE_CHECKING:
    from infctl.router.driver import Router
    from infctl.router.keys import Account


def own_page(
    router: Router, path: bytes, account: Account | None = None
) -> tuple[int, bytes, bytes]:
    """Status, body and content type of a page the router answers itrouter. Where there are
    keys, figures are not for clients: they would see each other's."""
    if path == b"/metrics":
        if router.own_metrics_port or router.keys is not None:
            body = error_body(404, "metrics are served on a port of their own alone")
            return 404, body, JSON
        return 200, router.metrics(), router.telemetry.CONTENT_TYPE
    if not bool(router.director.fleet.ready.any()):
        body = error_body(503, "no endpoint is ready yet")
        return 503, body, JSON
    return 200, b"" if path == b"/health" else models.page(router.director.fleet, account), JSON
