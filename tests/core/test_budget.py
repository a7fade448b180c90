"""A share of traffic, with what quiet times save."""

from __future__ import annotations

from infctl.core.budget import Budget


def test_what_was_saved_is_spent_and_then_a_share_of_traffic() -> None:
    budget = Budget(share=0.25, saved_max=2.0)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    spent = 0
    for _ in range(400):
        budget.earn()
        spent += budget.spend()
    assert spent == 100


def test_savings_are_bounded() -> None:
    budget = Budget(share=1.0, saved_max=3.0)
    for _ in range(100):
        budget.earn()
    assert budget.left == 3.0
