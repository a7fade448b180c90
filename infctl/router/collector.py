"""Scrapes endpoints' metrics into load reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.core import events as ev

if TYPE_CHECKING:
    from infctl.core.fleet import Endpoint
    from infctl.engine import Engine
    from infctl.router.driver import Router
    from infctl.router.upstream import Pool


async def scrape(
    router: Router, endpoint: Endpoint, engine: Engine, pool: Pool, timeout_s: float
) -> None:
    """Read one endpoint's metrics; a failed scrape reports None, never zeros.

    Series an engine should have and lacks are counted, and logged once.
    """
    if engine.metrics_path is None:
        return
    try:
        status, body = await pool.get(engine.metrics_path, timeout_s)
    except OSError:
        status, body = 0, b""
    if status != 200:
        router.handle(ev.LoadReported(endpoint.id, None))
        return
    text = body.decode(errors="replace")
    router.handle(ev.LoadReported(endpoint.id, engine.loads(text).get(endpoint.rank)))
    missing = engine.missing(text)
    if missing != router.telemetry.missing_series.get(endpoint.id, ()):
        router.telemetry.missing_series[endpoint.id] = missing
        router.telemetry.log("missing_series", endpoint=endpoint.id, series=",".join(missing))
