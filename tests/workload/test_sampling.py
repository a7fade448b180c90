from itertools import islice

import pytest

from infctl.workload.sampling import Draws, Quantiles


def test_quantiles_interpolate_and_clip() -> None:
    q = Quantiles((0.0, 10), (0.5, 20), (1.0, 100))
    assert [q.at(s) for s in (0.0, 0.25, 0.5, 0.75, 1.0)] == [10, 15, 20, 60, 100]
    assert q.mean() == 0.5 * 15 + 0.5 * 60
    assert Quantiles((0.0, 1), (0.9, 2)).at(0.99) == 2


def test_quantiles_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Quantiles((0.0, 5), (1.0, 4))


def test_draws_repeat_with_the_seed_alone() -> None:
    def first(seed: int, stream: int) -> list[float]:
        draws = Draws(seed, stream)
        return [draws.uniform() for _ in range(5)]

    assert first(1, 0) == first(1, 0)
    assert len({tuple(first(s, t)) for s in (1, 2) for t in (0, 1)}) == 4


def test_even_draws_fill_every_stratum() -> None:
    draws = list(islice(Draws(3, 0).even(50), 100))
    for half in (draws[:50], draws[50:]):
        assert sorted(int(u * 50) for u in half) == list(range(50))
    assert draws[:50] != sorted(draws[:50])


def test_gaps_have_the_rate() -> None:
    draws = Draws(5, 0)
    mean_s = sum(draws.gap_s(4.0) for _ in range(20_000)) / 20_000
    assert mean_s == pytest.approx(0.25, rel=0.03)


def test_ids_belong_to_a_seed() -> None:
    assert Draws(1, 0).id(7) == Draws(1, 3).id(7)
    assert Draws(1, 0).id(7) != Draws(2, 0).id(7)
    assert 0 <= Draws(1, 0).id(2**32 - 1) < 2**63
