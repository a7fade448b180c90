"""What of a profile reaches the Director."""

from __future__ import annotations

from infctl.core.director import Settings
from infctl.profile.model import Routing
from infctl.settings import director_settings


def test_the_profiles_defaults_are_the_directors() -> None:
    assert director_settings(Routing(), 1.0) == Settings()


def test_times_are_divided_by_the_speed_and_nothing_else() -> None:
    flow = {"hold": False, "queue_max": 7, "queue_s": 8.0, "priorities": ["one"]}
    routing = Routing.model_validate({"flow": flow, "attempts_max": 2, "hedge_share": 0.1})
    found = director_settings(routing, 4.0)
    assert (found.hold, found.queue_max, found.priorities) == (False, 7, ("one",))
    assert (found.attempts_max, found.hedge_share) == (2, 0.1)
    assert (found.queue_s, found.backlog_s, found.slow_start_s) == (2.0, 0.25, 2.5)
