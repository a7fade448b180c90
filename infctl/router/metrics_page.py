"""The port that serves metrics alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infctl.router.wire import answer

if TYPE_CHECKING:
    from infctl.router.driver import Router
    from infctl.router.keys import Refusal


class MetricsPage:
    """A seams.Handler that knows /metrics alone."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def on_head(self, head: Any) -> Refusal | None:
        """Whoever reaches the port may look."""
        return None

    def on_refused(self, status: int) -> None:
        """Malformed scrapes are answered, not counted."""

    def on_bug(self, error: Exception) -> None:
        """Log what a scrape ran into."""
        self._router.telemetry.bug("scrape", error)

    def on_request(self, connection: Any, head: Any, body: bytes | bytearray) -> None:
        """Answer one scrape."""
        found = head.url.partition(b"?")[0] == b"/metrics"
        text = self._router.metrics() if found else b""
        colleagues = self._router.colleagues
        if found and colleagues is not None:
            self._router.spawn(colleagues.metrics(connection, head, text))
            return
        kind = self._router.telemetry.CONTENT_TYPE
        connection.respond(head, answer(200 if found else 404, text, content_type=kind))
