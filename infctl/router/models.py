"""The router's own `/v1/models`: what clients may ask for now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from infctl.core.fleet import State

if TYPE_CHECKING:
    from infctl.core.fleet import Fleet
    from infctl.router.keys import Account


def page(fleet: Fleet, account: Account | None) -> bytes:
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
