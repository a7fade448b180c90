from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.workload.sampling import Quantiles
from infctl.workload.sessions import SessionModel


def model(**changes: object) -> SessionModel:
    values: dict[str, object] = {
        "rate_rps": 5.0,
        "hit_ceiling": 0.4,
        "input_tokens": Quantiles((0, 100), (0.5, 3000), (1, 20_000)),
        "output_tokens": Quantiles((0, 1), (1, 100)),
        "growth_tokens": Quantiles((0, 20), (1, 900)),
        "think_s": Quantiles((0, 3), (1, 30)),
    } | changes
    return SessionModel(**values)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**40), st.floats(0, 0.8))
def test_turns_extend_the_turn_before_after_a_pause(seed: int, ceiling: float) -> None:
    last: dict[str, tuple[float, tuple[object, ...]]] = {}
    before_s = 0.0
    for request in model(hit_ceiling=ceiling).requests(seed, 300):
        assert request.at_s >= before_s
        assert request.output_tokens >= 1
        assert all(s.tokens > 0 for s in request.prompt)
        if request.session in last:
            at_s, prompt = last[request.session]
            assert request.prompt[: len(prompt)] == prompt
            assert len(request.prompt) == len(prompt) + 1
            assert request.at_s - at_s >= 3
        last[request.session] = (request.at_s, request.prompt)
        before_s = request.at_s


def test_same_seed_same_requests_whatever_the_limit() -> None:
    assert list(model().requests(1, 200))[:50] == list(model().requests(1, 50))
    assert list(model().requests(1, 50)) != list(model().requests(2, 50))


def test_every_application_has_its_system_prompt() -> None:
    many = model(system_tokens=(50, 60), system_weights=(3.0, 1.0))
    heads = [r.prompt[0] for r in many.requests(0, 400)]
    assert {h.tokens for h in heads} == {50, 60}
    assert len({h.id for h in heads}) == 2
    assert heads.count(heads[0]) != 200


def test_a_zero_ceiling_starts_sessions_only_where_nothing_is_shared() -> None:
    found = list(model(hit_ceiling=0.0, system_tokens=(1,)).requests(0, 400))
    assert len({r.session for r in found}) > 390


def test_idle_sessions_are_forgotten() -> None:
    short = model(patience_s=1.0, think_s=Quantiles((0, 5), (1, 5)))
    times_s: dict[str, list[float]] = {}
    for request in short.requests(0, 3000):
        times_s.setdefault(request.session, []).append(request.at_s)
    gaps_s = [b - a for times in times_s.values() for a, b in pairwise(times)]
    tidied_every_s = 512 / 5
    assert max(gaps_s) < 5 + 1 + 1.5 * tidied_every_s
