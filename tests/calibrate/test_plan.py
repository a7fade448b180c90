"""What is measured."""

import pytest

from infctl.calibrate.plan import GROUPS, experiments


@pytest.mark.parametrize("context", [512, 2048, 131_072])
def test_every_group_is_there_and_fits_the_context(context: int) -> None:
    found = experiments(context)
    assert [g for g in GROUPS if g in {e.group for e in found}] == list(GROUPS)
    for experiment in found:
        for ask in experiment.asks:
            assert 0 < ask.prefix + ask.new + ask.output <= context
            assert ask.new > 0
            assert ask.output > 0


def test_the_simplest_come_first() -> None:
    groups = [e.group for e in experiments(2048)]
    assert groups == sorted(groups, key=GROUPS.index)


def test_long_contexts_are_not_measured_to_their_end() -> None:
    assert max(a.prefix + a.new for e in experiments(131_072) for a in e.asks) <= 8192
