"""What was expected against what came true, through the Director."""

from __future__ import annotations

from random import Random

from infctl import compose
from infctl.core import events as ev
from infctl.core.accuracy import Error
from infctl.core.director import Director
from infctl.core.fleet import Endpoint, State
from infctl.core.prefix import block_hashes
from infctl.core.request import Request
from infctl.profile.model import Profile

PROFILE = Profile.model_validate(
    {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
)


def test_errors_are_sizes_by_direction() -> None:
    error = Error((1.0, 2.0))
    error.add(expected=3.0, actual=4.5)
    error.add(expected=3.0, actual=3.0)
    error.add(expected=3.0, actual=0.5)
    assert (error.above.counts, error.above.total) == ([0, 1, 0], 1.5)
    assert (error.below.counts, error.below.total) == ([1, 0, 1], 2.5)


def test_each_pool_has_its_own() -> None:
    director = Director(compose.pipeline(PROFILE), Random(1))
    unit = Endpoint(unit="u", url="", models=("m",), pool="p")
    director.handle(ev.EndpointJoined(unit, State.READY), 0.0)
    text = bytes(range(256)) * 8
    for number, cached in enumerate((0, 400)):
        request = Request(
            id=f"r{number}", model="m", stream=True, prompt_bytes=2048,
            blocks=block_hashes(text, 1),
        )  # fmt: skip
        director.handle(ev.RequestArrived(request), 1.0 + number)
        expected = next(iter(director.ledger)).expected_ttft_ms
        director.handle(ev.FirstByte(request.id), 1.5 + number)
        usage = ev.Usage(512, 5, cached)
        director.handle(ev.RequestFinished(request.id, True, usage), 1.8 + number)
        assert expected < 500.0
    found = director.flights.accuracy["p"]
    assert sum(found.ttft_s.above.counts) == 2
    assert 0.5 < found.ttft_s.above.total < 1.0
    # Nothing was expected of the first; of the second all 512 tokens, and the engine had 400.
    assert found.cached_tokens.below.total == 112.0
    drift = director.experience.drift
    assert (drift.error_tokens, drift.predicted_tokens, drift.actual_tokens) == (112.0, 512.0, 400)
    assert 0.1 < drift.share() < 0.12
