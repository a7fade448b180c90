"""Every scorer's rule, by hand-computed columns."""

from __future__ import annotations

import numpy as np
import pytest

from infctl import compose
from infctl.core.fleet import State
from infctl.plugin import Endpoint, Fleet, Load, Request
from infctl.profile.model import PluginRef


def fleet(units: int = 3) -> Fleet:
    made = Fleet()
    for number in range(units):
        made.add(Endpoint(unit=f"u{number}", url="", models=("m",)))
    return made


def score(
    name: str, made: Fleet, request: Request, cached: list[float], **fields: object
) -> list[float]:
    ref = PluginRef(type=name, **fields) if fields else name  # type: ignore[arg-type]
    scorer = compose.load("scorer", ref)
    column = scorer.score(request, made, np.array(cached))
    return [round(float(x), 6) for x in column]


def test_prefix_affinity_gives_way_to_balance() -> None:
    made = fleet()
    for slot in range(3):
        made.set_state(slot, State.READY)
        made.cells["inflight"][slot] = 4 + 2 * slot
    request = Request(id="r", model="m", prompt_tokens=200.0)
    assert score("prefix-affinity", made, request, [0, 100, 0]) == [0.0, 0.4, -0.2]
    assert score("prefix-affinity", made, request, [0, 100, 0], balance=0.5) == [0.0, -0.5, -2.0]


def test_prefix_affinity_is_the_cached_share() -> None:
    request = Request(id="r", model="m", prompt_tokens=200.0)
    assert score("prefix-affinity", fleet(), request, [0, 100, 400]) == [0.0, 0.5, 1.0]
    empty = Request(id="r", model="m")
    assert score("prefix-affinity", fleet(), empty, [0, 0, 0]) == [0.0, 0.0, 0.0]


def test_queue_depth_takes_the_larger_of_reported_and_own() -> None:
    made = fleet()
    made.report(0, Load(waiting=64))
    made.cells["pending"][1] = 32
    made.report(2, Load(waiting=500))
    request = Request(id="r", model="m")
    assert score("queue-depth", made, request, [0, 0, 0]) == [0.5, 0.75, 0.0]
    assert score("queue-depth", made, request, [0, 0, 0], limit=64) == [0.0, 0.5, 0.0]


def test_kv_usage_is_the_free_share() -> None:
    made = fleet()
    made.report(1, Load(kv_usage=0.75))
    made.report(2, Load(kv_usage=1.5))
    assert score("kv-usage", made, Request(id="r", model="m"), [0, 0, 0]) == [1.0, 0.25, 0.0]


def test_least_request_falls_with_requests_in_flight() -> None:
    made = fleet()
    made.cells["inflight"][1] = 1
    made.cells["inflight"][2] = 3
    assert score("least-request", made, Request(id="r", model="m"), [0, 0, 0]) == [1.0, 0.5, 0.25]


def test_sessions_have_homes_and_only_a_leavers_sessions_move() -> None:
    names = [f"s{n}" for n in range(200)]

    def homes(made: Fleet) -> dict[str, str]:
        found = {}
        for name in names:
            columns = score("session-affinity", made, Request(id="r", model="m", session=name), [0])
            endpoint = made.slots[int(np.argmax(columns))]
            assert endpoint is not None
            found[name] = endpoint.id
        return found

    before = homes(fleet(8))
    assert min(list(before.values()).count(f"u{n}") for n in range(8)) >= 10
    after = homes(fleet(7))
    assert all(after[s] == home for s, home in before.items() if home != "u7")
    assert score("session-affinity", fleet(2), Request(id="r", model="m"), [0, 0]) == [0.0, 0.0]


def test_predicted_ttft_adds_up_in_ms() -> None:
    made = fleet()
    made.now_ms = 1000.0
    for slot, (free_at, per_token, inflight, rtt) in enumerate(
        [(900, 0.1, 0, 0), (1500, 0.1, 4, 0), (1000, 0.2, 0, 7)]
    ):
        made.cells["free_at_ms"][slot] = free_at
        made.cells["ms_per_token"][slot] = per_token
        made.cells["inflight"][slot] = inflight
        made.cells["inflight_tokens"][slot] = 250 * inflight
        made.cells["step_ms_per_request"][slot] = 2
        made.cells["fixed_ms"][slot] = 60 + rtt
    request = Request(id="r", model="m", prompt_tokens=1000.0, output_tokens=20.0)
    # 8 ms a token of the 50 that are allowed; four others wait for 50 ms, the answer takes 160.
    per_token = 8 / 50 * (0.2 * 4 * 50 + 0.1 * 160)
    memory = 0.2 * 1000 * 0.1
    expected = [-(0 + 100 + 60), -(500 + 50 + memory + per_token + 60), -(0 + 0 + 60 + 7)]
    assert score("predicted-ttft", made, request, [0, 500, 2000]) == pytest.approx(expected)


def test_time_per_token_counts_the_more_the_scarcer_it_is() -> None:
    made = fleet(2)
    for slot, inflight in enumerate((2, 4)):
        made.cells["inflight"][slot] = inflight
        made.cells["step_ms_per_request"][slot] = 10
    request = Request(id="r", model="m", output_tokens=100.0)
    few, many = score("predicted-ttft", made, request, [0, 0])
    assert (few, many) == pytest.approx((-(20 * 10 * 0.4), -(40 * 10 * 0.8)))
    relaxed = score("predicted-ttft", made, request, [0, 0], tpot_ms=200.0)
    assert relaxed == pytest.approx([few / 4, many / 4])


def test_bad_parameters_are_refused_in_words() -> None:
    from infctl.errors import InputError

    with pytest.raises(InputError, match=r"no parameter 'limt' \(did you mean 'limit'\?\)"):
        compose.load("scorer", PluginRef(type="queue-depth", limt=3))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="limit must be at least 1"):
        compose.load("scorer", PluginRef(type="queue-depth", limit=0))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="Expected `int`"):
        compose.load("scorer", PluginRef(type="queue-depth", limit="many"))  # type: ignore[call-arg]
