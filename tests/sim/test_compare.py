"""A whole comparison, small."""

from __future__ import annotations

import msgspec

from infctl.runs.spec import RunSpec
from infctl.sim import arena, compare, contenders


def test_every_policy_stands_at_its_best_parameters(fleet, monkeypatch) -> None:
    monkeypatch.setattr(contenders, "_GRIDS", {"dynamo-cost": {"overlap_weight": [1.0, 4.0]}})
    monkeypatch.setattr(compare, "LOADS", (0.5, 1.0))
    monkeypatch.setattr(arena, "_SCAN_STEP", 0.5)
    monkeypatch.setattr(arena, "_RESOLUTION", 0.2)
    profile = fleet(units=1, args={"max_num_seqs": 4})
    spec = RunSpec(url="", workload="code", limit=100)
    said: list[str] = []
    found = compare.compare(profile, spec, ["dynamo-cost", "least-request"], 2, said.append)
    assert [s.policy for s in found.standings] == [
        *("predicted-ttft", "round-robin", "dynamo-cost", "least-request")
    ]
    assert [s.tried for s in found.standings] == [1, 1, 2, 1]
    for standing in found.standings:
        rates = [r.rate_scale for r in standing.readings]
        assert rates == [round(load * found.saturation, 4) for load in (0.5, 1.0)]
    assert said[0] == "round-robin's saturation"
    again = msgspec.json.decode(msgspec.json.encode(found), type=compare.Comparison)
    assert again == found


def test_between_equals_the_published_parameters_win(fleet) -> None:
    field = contenders.variants(fleet(), "dynamo-cost")
    best = list(compare._best(field, [(1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (2.0, 1.5), (2.0, 1.5)]))
    assert best == [3]
    assert list(compare._best(field, [(1.0, 1.0)] * 5)) == [0]
