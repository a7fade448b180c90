"""What `/v1/models` lists."""

from __future__ import annotations

import json
from typing import Any

from infctl.core.fleet import Endpoint, Fleet, State
from infctl.router.pages import models_page


class Account:
    def may_use(self, name: str) -> bool:
        return name != "secret"


def test_it_lists_what_is_ready_and_may_be_used() -> None:
    fleet = Fleet()
    a = Endpoint(unit="a", url="", models=("m", "alias"), engine="vllm", context_tokens=64)
    fleet.add(a, State.READY)
    fleet.add(Endpoint(unit="b", url="", models=("gone",)), State.EJECTED)
    fleet.add(Endpoint(unit="c", url="", models=("secret",)), State.READY)
    account: Any = Account()
    assert {m["id"] for m in json.loads(models_page(fleet, None))["data"]} == {
        "m", "alias", "secret",
    }  # fmt: skip
    listed = json.loads(models_page(fleet, account))["data"]
    assert listed == [
        {"id": name, "object": "model", "owned_by": "vllm", "root": "m", "max_model_len": 64}
        for name in ("alias", "m")
    ]
