"""The lives of endpoints as playbooks, and what holds whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from infctl.core.breaker import STREAK_MAX
from infctl.core.fleet import Endpoint, Fleet, State
from infctl.core.life import Cause, Effect, Move, Restart, Spared
from infctl.core.lifecycle import (
    FORGIVE_S,
    RESTART_AFTER_S,
    SLOW_S,
    SPARED_S,
    WAIT_S,
    WAIT_S_MAX,
    Lifecycle,
    Settings,
)


class Play:
    """A fleet whose driver does what the machine says."""

    def __init__(self, units: int = 4, **options: object) -> None:
        self.fleet = Fleet()
        self.machine = Lifecycle(self.fleet, Settings(**options))  # type: ignore[arg-type]
        self.effects: list[Effect] = []
        for number in range(units):
            name = f"u{number}"
            endpoint = Endpoint(unit=name, url="", models=("m",), pool="p")
            self.machine.joined(self.fleet.add(endpoint, State.READY), 0.0)

    def do(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Move):
                self.fleet.set_state(effect.slot, effect.state)
        self.effects += effects
        return effects

    def fail(self, slot: int, times: int = STREAK_MAX, now: float = 1.0) -> list[Effect]:
        return [e for _ in range(times) for e in self.do(self.machine.failed(slot, now))]

    def verify(self, slot: int, problem: str | None, now: float) -> list[Effect]:
        self.do(self.machine.verifying(slot, now))
        return self.do(self.machine.verified(slot, problem, now))

    def states(self) -> str:
        return " ".join(state.value for state in self.fleet.states)


def test_failures_in_a_row_eject_softly_and_a_canary_brings_back() -> None:
    play = Play()
    (move,) = play.fail(0)
    assert move == Move(
        0, State.EJECTED, f"failed {STREAK_MAX} requests in a row", Cause.ERRORS, False
    )
    assert not play.machine.due(0, 1.0 + WAIT_S - 0.01)
    assert play.do(play.machine.verifying(0, 1.5)) == []
    moves = play.verify(0, None, 1.0 + WAIT_S)
    assert moves == [Move(0, State.READY, "verified")]
    assert play.fail(0, STREAK_MAX - 1) == []


def test_answers_between_failures_are_no_streak() -> None:
    play = Play()
    for _ in range(9):
        play.fail(0, STREAK_MAX - 1)
        for _ in range(STREAK_MAX + 2):
            play.machine.answered(0)
    assert play.effects == []


def test_nobody_who_listens_is_out_at_once_and_what_runs_there_moves_on() -> None:
    play = Play(1)
    move, restart = play.do(play.machine.refused(0, "refuses connections", 1.0))
    assert move == Move(0, State.EJECTED, "refuses connections", Cause.REFUSED, True)
    assert restart == Restart(0, "refuses connections", check=True)


def test_probes_in_a_row_eject_but_not_who_still_makes_progress() -> None:
    play = Play(probe_failures=2)
    assert play.do(play.machine.probed(0, "mute", 1.0)) == []
    assert play.do(play.machine.probed(0, "mute", 2.0, progressed=True)) == []
    assert play.do(play.machine.probed(0, "mute", 3.0)) == []
    move, _ = play.do(play.machine.probed(0, "mute", 4.0))
    assert (move.state, move.abandon) == (State.EJECTED, True)  # type: ignore[union-attr]


def test_a_suspect_is_out_with_the_first_failed_probe_and_cleared_by_a_good_one() -> None:
    play = Play(probe_failures=2)
    assert play.machine.suspect(0)
    assert not play.machine.suspect(0)
    assert play.do(play.machine.probed(0, None, 1.0)) == []
    assert play.do(play.machine.probed(0, "mute", 2.0)) == []
    play.do(play.machine.probed(0, None, 3.0))
    assert play.machine.suspect(0)
    assert len(play.do(play.machine.probed(0, "mute", 4.0))) == 2
    assert not play.machine.suspect(0)


def test_if_all_fail_routing_goes_on_and_it_is_said_now_and_then() -> None:
    play = Play(4)
    for slot in range(4):
        play.fail(slot)
    assert play.states() == "ejected ready ready ready"
    assert sum(isinstance(e, Spared) for e in play.effects) == 3
    assert play.fail(1, 50, now=1.0 + SPARED_S - 0.1) == []
    assert play.fail(1, 1, now=1.0 + SPARED_S) == [Spared(1, f"failed {56} requests in a row")]


def test_a_failed_canary_makes_no_room_for_another_ejection() -> None:
    play = Play(4)
    play.fail(0)
    play.verify(0, "garbage", 10.0)
    assert isinstance(play.fail(1, now=10.0)[0], Spared)
    play.verify(0, None, 60.0)
    assert isinstance(play.fail(1, 1, now=60.0)[0], Move)


def test_the_last_ready_endpoint_of_a_model_stays() -> None:
    play = Play(2, ejected_share_max=1.0)
    assert isinstance(play.fail(0)[0], Move)
    assert isinstance(play.fail(1)[0], Spared)
    assert isinstance(Play(1).fail(0)[0], Spared)


def test_a_third_of_ten_may_be_out() -> None:
    play = Play(10)
    for slot in range(10):
        play.fail(slot)
    assert play.states().count("ejected") == 3


def test_a_failed_canary_asks_for_a_restart_once_nothing_runs_there() -> None:
    play = Play()
    play.fail(0)
    play.fleet.cells["inflight"][0] = 1.0
    (move,) = play.verify(0, "garbage", 2.0)
    assert move == Move(0, State.EJECTED, "garbage", Cause.CANARY, False)
    assert play.do(play.machine.tick(3.0)) == []
    play.fleet.cells["inflight"][0] = 0.0
    assert play.do(play.machine.tick(4.0)) == [Restart(0, "garbage")]
    assert play.do(play.machine.tick(5.0)) == []


def test_what_runs_there_delays_a_restart_only_so_long() -> None:
    play = Play()
    play.fail(0)
    play.fleet.cells["inflight"][0] = 1.0
    play.verify(0, "garbage", 2.0)
    assert play.do(play.machine.tick(2.0 + RESTART_AFTER_S)) == [Restart(0, "garbage")]


def test_one_that_trips_again_after_verifying_is_restarted() -> None:
    play = Play()
    play.fail(0)
    play.verify(0, None, 2.0)
    play.fail(0, now=3.0)
    reason = f"failed {STREAK_MAX} requests in a row"
    assert play.do(play.machine.tick(4.0)) == [Restart(0, reason)]


def test_flapping_doubles_the_wait_and_is_forgiven_one_by_one() -> None:
    play = Play()
    now, waits = 0.0, []
    for _ in range(9):
        play.do(play.machine.refused(0, "gone", now))
        waits.append(play.machine.lives[0].retry_at - now)
        now = play.machine.lives[0].retry_at
        play.verify(0, None, now)
    assert waits == [WAIT_S * 2**n for n in range(6)] + [WAIT_S_MAX] * 3
    play.do(play.machine.tick(now + 4 * FORGIVE_S))
    assert play.machine.lives[0].flaps == 5
    play.do(play.machine.tick(now + 9 * FORGIVE_S))
    assert play.machine.lives[0].flaps == 0


def test_a_replacement_inherits_flaps_and_an_operators_hold() -> None:
    play = Play()
    play.do(play.machine.refused(0, "gone", 1.0))
    assert play.machine.joined(0, 2.0, play.machine.lives[0]) == []
    assert play.machine.lives[0].flaps == 1
    play.do(play.machine.drain(0, 3.0))
    before = play.machine.lives[0]
    play.fleet.set_state(0, State.STARTING)
    (move,) = play.do(play.machine.joined(0, 4.0, before))
    assert (move.state, move.reason) == (  # type: ignore[union-attr]
        State.EJECTED,
        "held by an operator",
    )
    assert not play.machine.due(0, 1000.0)


@pytest.mark.parametrize("action", ["drain", "eject"])
def test_what_an_operator_holds_no_evidence_moves(action: str) -> None:
    play = Play()
    play.do(getattr(play.machine, action)(0, 1.0))
    held = play.fleet.states[0]
    play.fail(0)
    play.do(play.machine.refused(0, "gone", 2.0))
    play.do(play.machine.tick(100.0))
    play.verify(0, None, 100.0)
    assert play.fleet.states[0] is held
    play.do(play.machine.resume(0, 101.0))
    assert play.verify(0, None, 101.0) == [Move(0, State.READY, "verified")]


def test_a_drained_endpoint_that_dies_lets_its_requests_go_and_stays_held() -> None:
    play = Play(probe_failures=1)
    play.do(play.machine.drain(0, 1.0))
    move, _ = play.do(play.machine.probed(0, "mute", 2.0))
    assert (move.state, move.abandon) == (State.EJECTED, True)  # type: ignore[union-attr]
    assert not play.machine.due(0, 1000.0)


def test_resuming_what_is_ready_changes_nothing() -> None:
    play = Play()
    assert play.do(play.machine.resume(0, 1.0)) == []


def test_an_operator_may_accept_what_canaries_do_not() -> None:
    play = Play()
    play.do(play.machine.refused(0, "gone", 1.0))
    play.verify(0, "differs", 5.0)
    play.do(play.machine.resume(0, 6.0))
    assert play.machine.lives[0].accepts_anew
    play.verify(0, None, 6.0)
    assert not play.machine.lives[0].accepts_anew


def test_what_an_operator_takes_out_while_it_is_verified_stays_out() -> None:
    play = Play()
    play.do(play.machine.refused(0, "gone", 1.0))
    play.do(play.machine.verifying(0, 3.0))
    play.do(play.machine.eject(0, 3.1))
    assert play.do(play.machine.verified(0, None, 3.2)) == []
    assert play.fleet.states[0] is State.EJECTED


def test_one_that_is_outvoted_is_verified_again() -> None:
    play = Play(1)
    (move,) = play.do(play.machine.outvoted(0, 1.0))
    assert (move.cause, move.abandon) == (Cause.CANARY, False)  # type: ignore[union-attr]
    assert play.do(play.machine.outvoted(0, 1.0)) == []
    assert play.verify(0, "differs", 3.0)[1:] == [Restart(0, "differs")]


def test_a_supervisors_word_ejects_once() -> None:
    play = Play()
    (move,) = play.do(play.machine.unit_ended(0, "exited", 1.0))
    assert (move.cause, move.abandon) == (Cause.UNIT, True)  # type: ignore[union-attr]
    assert play.do(play.machine.unit_ended(0, "exited", 2.0)) == []


def test_an_outlier_is_ejected_and_its_marks_expire() -> None:
    play = Play()
    for slot in range(4):
        for number in range(100):
            if slot == 2 and number % 10 < 3:
                play.do(play.machine.failed(slot, 1.0))
            else:
                play.machine.answered(slot)
    assert play.effects == []
    (move,) = play.do(play.machine.tick(2.0))
    assert (move.slot, move.cause) == (2, Cause.OUTLIER)
    for now in (20.0, 40.0, 60.0):
        play.do(play.machine.tick(now))
    assert all(life.breaker.requests == 0 for life in play.machine.lives.values())


def test_one_that_is_far_slower_for_long_is_ejected() -> None:
    play = Play()
    for slot in range(4):
        play.fleet.cells["fixed_ms"][slot] = 500.0 if slot == 3 else 100.0
    effects: list[Effect] = []
    now = 1.0
    while now < 1.0 + SLOW_S + 5 and not effects:
        for slot in range(4):
            for _ in range(20):
                play.machine.answered(slot)
        effects = play.do(play.machine.tick(now))
        now += 1.0
    (move,) = effects
    assert (move.slot, move.cause, move.reason) == (  # type: ignore[union-attr]
        3,
        Cause.SLOW,
        "is 5.0 times slower than its peers",
    )
    assert now > 1.0 + SLOW_S


def test_slots_of_nobody_are_ignored() -> None:
    play = Play(1)
    play.machine.left(0)
    play.machine.answered(0)
    effects = [play.machine.failed(0, 1.0), play.machine.failed(99, 1.0)]
    effects += [play.machine.probed(0, "x", 1.0), play.machine.verified(0, None, 1.0)]
    assert effects == [[]] * 4
    assert not play.machine.suspect(0)


class Machine(RuleBasedStateMachine):
    """Any evidence in any order."""

    UNITS = 5

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(self.UNITS)
        self.now = 1.0
        self.verified_since_out = dict.fromkeys(range(self.UNITS), True)
        self.held: set[int] = set()

    slots = st.integers(0, UNITS - 1)

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Move):
                continue
            slot, was = effect.slot, self.play.fleet.states[effect.slot]
            if effect.state is State.EJECTED:
                self.verified_since_out[slot] = False
                if effect.cause in (Cause.ERRORS, Cause.OUTLIER, Cause.SLOW):
                    ready = sum(s is State.READY for s in self.play.fleet.states)
                    assert was is State.READY
                    assert ready >= 2, "the last ready endpoint was ejected for its failures"
                    assert not effect.abandon
            if effect.state is State.READY:
                assert was is State.VERIFYING
                assert self.verified_since_out[slot], "ready without a passed verification"
                assert slot not in self.held
        self.play.do(effects)
        out = [life for life in self.play.machine.lives.values() if life.statistical]
        assert len(out) <= 1  # 30 % of 5

    @rule(slot=slots, times=st.integers(1, 8))
    def fails(self, slot: int, times: int) -> None:
        for _ in range(times):
            self.do(self.play.machine.failed(slot, self.now))

    @rule(slot=slots, times=st.integers(1, 30))
    def answers(self, slot: int, times: int) -> None:
        for _ in range(times):
            self.play.machine.answered(slot)

    @rule(slot=slots)
    def refuses(self, slot: int) -> None:
        self.do(self.play.machine.refused(slot, "refused", self.now))

    @rule(slot=slots, ok=st.booleans(), progressed=st.booleans(), suspected=st.booleans())
    def is_probed(self, slot: int, ok: bool, progressed: bool, suspected: bool) -> None:
        if suspected:
            self.play.machine.suspect(slot)
        trouble = None if ok else "mute"
        self.do(self.play.machine.probed(slot, trouble, self.now, progressed))
        if ok:
            self.do(self.play.machine.verifying(slot, self.now))

    @rule(slot=slots, ok=st.booleans())
    def is_verified(self, slot: int, ok: bool) -> None:
        if ok and self.play.fleet.states[slot] is State.VERIFYING:
            self.verified_since_out[slot] = True
        self.do(self.play.machine.verified(slot, None if ok else "garbage", self.now))

    @rule(slot=slots)
    def unit_ends(self, slot: int) -> None:
        self.do(self.play.machine.unit_ended(slot, "ended", self.now))

    @rule(slot=slots, action=st.sampled_from(["drain", "eject"]))
    def is_held(self, slot: int, action: str) -> None:
        self.held.add(slot)
        self.do(getattr(self.play.machine, action)(slot, self.now))

    @precondition(lambda self: self.held)
    @rule(slot=slots)
    def is_resumed(self, slot: int) -> None:
        self.held.discard(slot)
        self.do(self.play.machine.resume(slot, self.now))

    @rule(seconds=st.floats(0.1, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.play.machine.tick(self.now))

    @invariant()
    def waits_are_bounded(self) -> None:
        for slot, life in self.play.machine.lives.items():
            assert life.retry_at - self.now <= WAIT_S_MAX
            assert 0 <= life.flaps <= 32
            if slot in self.held:
                assert self.play.fleet.states[slot] in (State.DRAINING, State.EJECTED)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
