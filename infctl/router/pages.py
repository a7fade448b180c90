"""What the router answers itself: health, models, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core.fleet import State
from infctl.router.wire import JSON, error_body

if TYPE_CHECKING:
    from infctl.core.fleet import Fleet
    from infctl.router.driver import Router
    from infctl.router.keys import Account


def own_page(
    router: Router, path: bytes, account: Account | None = None
) -> tuple[int, bytes, bytes]:
    """Status, body and content type of a page the router answers itself. Where there are
    keys, figures are not for clients: they would see each other's."""
    if path == b"/metrics":
        if router.own_metrics_port or router.keys is not None:
            body = error_body(404, "metrics are served on a port of their own alone")
            return 404, body, JSON
        return 200, router.metrics(), router.telemetry.CONTENT_TYPE
    if not bool(router.director.fleet.ready.any()):
        body = error_body(503, "no endpoint is ready yet")
        return 503, body, JSON
    return 200, b"" if path == b"/health" else models_page(router.director.fleet, account), JSON


def models_page(fleet: Fleet, account: Account | None) -> bytes:
    """The names that ready endpoints answer to and this client may use, as OpenAI's API lists
    them."""
    ready = [e for slot, e in fleet if fleet.states[slot] is State.READY]
    names = {name: e for e in ready for name in e.models}
    if account is not None:
        names = {name: e for name, e in names.items() if account.may_use(name)}
    data = [
        {"id": name, "object": "model", "owned_by": e.engine, "root": e.models[0]}
        | ({"max_model_len": e.context_tokens} if e.context_tokens else {})
        for name, e in sorted(names.items())
    ]
    return msgspec.json.encode({"object": "list", "data": data})
