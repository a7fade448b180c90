"""The request machine, as playbooks: events in, commands out."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from infctl import compose
from infctl.core import events as ev
from infctl.core.commands import Abort, Dispatch, Reject
from infctl.core.director import Director, Settings
from infctl.core.fleet import Endpoint, Load, State
from infctl.core.ledger import Decision, Row
from infctl.core.ledger import rows as rows_of
from infctl.core.prefix import block_hashes, prefix_seed
from infctl.core.request import Request
from infctl.profile.model import Profile

SEED = prefix_seed("m")


def director(units: int = 3, seed: int = 1, **routing: object) -> Director:
    profile = Profile.model_validate(
        {
            "metadata": {"name": "t"},
            "models": [{"name": "m"}],
            "pools": [{"name": "p"}],
            "routing": routing,
        }
    )
    made = Director(compose.pipeline(profile), random.Random(seed), Settings(attempts_max=3))
    for number in range(units):
        join(made, number)
    return made


def join(made: Director, number: int, state: State = State.READY) -> None:
    endpoint = Endpoint(unit=f"u{number}", url=f"http://u{number}", models=("m",), pool="p")
    made.handle(ev.EndpointJoined(endpoint, state), 0.0)


def request(name: str, tokens: int = 500, prompt: int = 0, **more: object) -> Request:
    text = random.Random(prompt).randbytes(tokens * 4)
    fields = {"model": "m", "stream": True} | more
    return Request(
        id=name,
        prompt_bytes=len(text),
        blocks=block_hashes(text, SEED),
        **fields,  # type: ignore[arg-type]
    )


def arrive(made: Director, item: Request, now: float = 1.0) -> Dispatch:
    (command,) = made.handle(ev.RequestArrived(item), now)
    assert isinstance(command, Dispatch)
    return command


def test_a_request_runs_its_course() -> None:
    made = director(1)
    assert arrive(made, request("a")) == Dispatch("a", 0, 1, 0)
    fleet = made.fleet
    assert (fleet.inflight[0], fleet.pending[0], fleet.pending_tokens[0]) == (1.0, 1.0, 500.0)
    assert made.handle(ev.FirstByte("a"), 1.2) == []
    assert (fleet.inflight[0], fleet.pending[0], fleet.pending_tokens[0]) == (1.0, 0.0, 0.0)
    assert made.handle(ev.RequestFinished("a", True, ev.Usage(500, 11, 0)), 2.2) == []
    assert (fleet.inflight[0], len(made.flights)) == (0.0, 0)
    assert fleet.step_ms_per_request[0] * 1 + fleet.step_ms[0] == 100.0


def test_an_endpoint_that_starts_again_has_nothing_cached() -> None:
    made = director(2)
    arrive(made, request("a", prompt=7))
    assert len(made.index) > 0
    for number in range(2):
        made.handle(ev.EndpointChanged(f"u{number}", State.STARTING), 1.0)
    assert len(made.index) == 0


def test_a_burst_spreads_before_any_metric_moves() -> None:
    made = director(8)
    slots = Counter(arrive(made, request(f"r{n}", prompt=n)).slot for n in range(200))
    assert max(slots.values()) / (200 / 8) <= 1.3


def test_a_shared_system_prompt_does_not_draw_every_request_to_whoever_saw_it_first() -> None:
    made, dice = director(8), random.Random(3)
    shared = dice.randbytes(10_000)
    slots: Counter[int] = Counter()
    for n in range(100):
        text = shared + dice.randbytes(2_000)
        now = 1.0 + n * 0.1
        item = Request(
            id=f"r{n}", model="m", prompt_bytes=len(text), stream=True,
            blocks=block_hashes(text, SEED), max_tokens=300,
        )  # fmt: skip
        slots[arrive(made, item, now).slot] += 1
        made.handle(ev.FirstByte(f"r{n}"), now + 0.09)
        if n >= 50:
            made.handle(ev.RequestFinished(f"r{n - 50}", True, ev.Usage(3000, 300, 2500)), now)
    assert len(slots) == 8
    assert max(slots.values()) <= 2.5 * 100 / 8


def test_load_is_tokens_not_requests() -> None:
    made = director(2)
    long = arrive(made, request("long", tokens=100_000)).slot
    short = [arrive(made, request(f"s{n}", prompt=n + 1)).slot for n in range(20)]
    assert short.count(long) == 0


def test_a_second_turn_goes_where_the_first_was() -> None:
    made = director(8)
    first = arrive(made, request("a", tokens=2000, prompt=7))
    made.handle(ev.FirstByte("a"), 1.1)
    made.handle(ev.RequestFinished("a", True, ev.Usage(2000, 5, 0)), 1.2)
    again = arrive(made, request("b", tokens=2000, prompt=7), 2.0)
    assert (again.slot, again.cached_tokens > 1500) == (first.slot, True)


def test_a_failed_request_teaches_the_index_nothing() -> None:
    for ending in (
        ev.RequestFinished("a", False),
        ev.LegFailed("a", "cut", started=True),
        ev.RequestCancelled("a"),
    ):
        made = director(1)
        arrive(made, request("a"))
        assert len(made.index) > 0
        made.handle(ending, 1.5)
        assert (len(made.index), made.fleet.inflight[0], made.fleet.pending[0]) == (0, 0.0, 0.0)


def test_another_endpoint_takes_over_and_then_it_ends() -> None:
    made = director(3)
    tried = {arrive(made, request("a")).slot}
    for attempt in (2, 3):
        (command,) = made.handle(ev.LegFailed("a", "refused"), 1.0)
        assert isinstance(command, Dispatch)
        assert (command.attempt, command.slot in tried) == (attempt, False)
        tried.add(command.slot)
    (command,) = made.handle(ev.LegFailed("a", "refused"), 1.0)
    assert command == Reject("a", 502, "3 endpoints failed; the last one: refused")
    assert made.handle(ev.LegFailed("a", "again"), 1.0) == []


def test_retries_cannot_amplify_an_outage() -> None:
    made = director(4)
    dispatched = 0
    for n in range(3000):
        commands = made.handle(ev.RequestArrived(request(f"r{n}", tokens=1)), float(n))
        while isinstance(commands[0], Dispatch):
            dispatched += 1
            commands = made.handle(ev.LegFailed(f"r{n}", "refused"), float(n))
        assert isinstance(commands[0], Reject)
    assert 3000 + 1000 <= dispatched <= 3000 + 1000 + 0.2 * 3000 + 1
    assert commands[0].status in (502, 503)
    assert len(made.flights) == 0


def test_nothing_ready_is_a_503_and_an_unknown_model_a_404() -> None:
    made = director(1)
    (command,) = made.handle(ev.RequestArrived(request("a", model="other")), 1.0)
    assert isinstance(command, Reject)
    assert command.status == 404
    made.handle(ev.EndpointChanged("u0", State.DRAINING), 1.0)
    (command,) = made.handle(ev.RequestArrived(request("b")), 1.0)
    assert isinstance(command, Reject)
    assert (command.status, command.retry_after_s) == (503, 1)


def test_a_client_that_leaves_aborts_its_leg() -> None:
    made = director(1)
    arrive(made, request("a"))
    assert made.handle(ev.RequestCancelled("a"), 2.0) == [Abort("a", 0)]
    assert made.handle(ev.RequestCancelled("a"), 2.0) == []


def test_an_endpoint_that_leaves_takes_its_accounts_along() -> None:
    made = director(1)
    arrive(made, request("a"))
    made.handle(ev.EndpointLeft("u0"), 2.0)
    join(made, 1)
    made.handle(ev.RequestFinished("a", True), 3.0)
    assert float(made.fleet.inflight[0]) == 0.0
    assert made.index.held_bytes(0) == 0


def test_the_engines_capacity_bounds_the_index() -> None:
    made = director(1)
    made.handle(ev.LoadReported("u0", Load(kv_capacity_tokens=1024)), 1.0)
    arrive(made, request("a", tokens=50_000))
    assert made.index.held_bytes(0) <= 4096


def test_bytes_a_token_are_learned_from_usage() -> None:
    made = director(1)
    arrive(made, request("a", tokens=500))
    made.handle(ev.RequestFinished("a", True, ev.Usage(2000, 5, 0)), 2.0)
    assert made.experience.bytes_per_token("m") == 1.0
    arrive(made, request("b", tokens=500, plain_text=False))
    made.handle(ev.RequestFinished("b", True, ev.Usage(500, 5, 0)), 3.0)
    assert made.experience.bytes_per_token("m") == 1.0


def test_a_long_prompt_says_more_about_tokens_than_a_short_one() -> None:
    made = director(1)
    for name, tokens, reported in (("short", 5, 40), ("long", 50_000, 200_000)):
        arrive(made, request(name, tokens=tokens))
        made.handle(ev.RequestFinished(name, True, ev.Usage(reported, 5, 0)), 2.0)
    assert 0.99 < made.experience.bytes_per_token("m") < 1.01


def test_drift_compares_prediction_with_what_engines_report() -> None:
    made = director(1)
    arrive(made, request("a", tokens=1024))
    made.handle(ev.RequestFinished("a", True, ev.Usage(1024, 5, 0)), 2.0)
    arrive(made, request("b", tokens=1024), 3.0)
    made.handle(ev.RequestFinished("b", True, ev.Usage(1024, 5, 512)), 4.0)
    drift = made.experience.drift
    assert (drift.requests, drift.prompt_tokens) == (2, 2048)
    assert (drift.predicted_tokens, drift.actual_tokens) == (1024.0, 512)


def test_the_same_events_give_the_same_commands() -> None:
    def play() -> list[object]:
        made = director(4, seed=9, picker="weighted-random")
        return [
            made.handle(ev.RequestArrived(request(f"r{n}", prompt=n % 5)), n) for n in range(50)
        ]

    assert play() == play()


def test_prompt_tokens_in_flight_count_the_whole_prompt_until_the_end() -> None:
    made = director(1)
    arrive(made, request("a", tokens=1000, prompt=1), 1.0)
    arrive(
        made, request("b", tokens=1000, prompt=1), 1.1
    )  # cached there by then: counted all the same
    assert made.fleet.inflight_tokens.tolist() == [2000.0]
    made.handle(ev.FirstByte("a"), 1.2)
    assert made.fleet.inflight_tokens.tolist() == [2000.0]
    # What a token takes is learned anew, and with it the length of a request that is open.
    made.handle(ev.RequestFinished("a", True, ev.Usage(1333, 5, 0)), 1.3)
    assert made.fleet.inflight_tokens.tolist() == [1000.0]
    made.handle(ev.LegFailed("b", "broke"), 1.4)
    made.handle(ev.RequestCancelled("b"), 1.5)
    assert made.fleet.inflight_tokens.tolist() == [0.0]


def test_explaining_changes_nothing_and_names_the_filter() -> None:
    made = director(3)
    made.handle(ev.EndpointChanged("u1", State.EJECTED), 1.0)
    rows, best = made.explain(request("x"), 1.0)
    assert [(r.endpoint, r.dropped_by) for r in rows] == [
        ("u0", None),
        ("u2", None),
        ("u1", "ready"),
    ]
    assert best == 0
    assert rows[0].scores.keys() == {"predicted-ttft"}
    assert rows[2].total is None
    assert (len(made.flights), len(made.index), float(made.fleet.inflight.sum())) == (0, 0, 0.0)


def test_explaining_does_not_disturb_what_comes_after() -> None:
    def play(explain: bool) -> list[int]:
        made = director(4, picker="round-robin")
        slots = []
        for n in range(6):
            if explain:
                assert made.explain(request("x"), 1.0)[1] == -1
            slots.append(arrive(made, request(f"r{n}")).slot)
        return slots

    assert play(True) == play(False)


def test_the_ledger_tells_what_was_expected_and_what_came_true() -> None:
    made = director(2)
    item = request("a")
    item.name = "client-id"
    arrive(made, item, 1.0)
    made.handle(ev.FirstByte("a"), 1.25)
    made.handle(ev.RequestFinished("a", True, ev.Usage(500, 5, 128)), 2.0)
    (decision,) = made.ledger.find("client-id")
    assert (decision.ttft_ms, decision.cached_tokens, decision.outcome) == (250.0, 128, "answered")
    assert (decision.expected_cached_tokens, decision.expected_ttft_ms) == (0.0, 55.0)
    rows = ledger_rows(made, decision)
    assert [r.picked for r in rows].count(True) == 1
    assert rows[0].picked


def ledger_rows(made: Director, decision: Decision) -> list[Row]:
    return rows_of(decision.endpoints, decision.cached, decision.choice, decision.choice.slot)


def test_every_attempt_is_a_decision_and_the_ledger_is_bounded() -> None:
    made = director(2)
    item = request("a")
    item.name = "n"
    arrive(made, item)
    made.handle(ev.LegFailed("a", "refused"), 1.0)
    newest, first = made.ledger.find("n")
    assert (newest.attempt, first.attempt, first.outcome) == (2, 1, "failed: refused")
    for n in range(1500):
        arrive(made, request(f"r{n}", tokens=1))
    assert len(made.ledger) == 1000
    assert made.ledger.find("n") == []


class Machine(RuleBasedStateMachine):
    """Any order of events: one terminal command a request, no account below zero, no dispatch to
    an endpoint that is not ready."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.made = director(2)
        self.number = 0
        self.open: set[str] = set()

    def perform(self, event: ev.Event) -> None:
        for command in self.made.handle(event, self.number * 0.1):
            assert command.request_id in self.open
            if isinstance(command, Dispatch):
                assert self.made.fleet.states[command.slot] is State.READY
            else:
                self.open.remove(command.request_id)

    @rule(
        target=requests, tokens=st.integers(0, 5000), prompt=st.integers(0, 3), stream=st.booleans()
    )
    def arrive(self, tokens: int, prompt: int, stream: bool) -> str:
        self.number += 1
        name = f"r{self.number}"
        self.open.add(name)
        self.perform(ev.RequestArrived(request(name, tokens, prompt, stream=stream)))
        return name

    @rule(name=requests)
    def first_byte(self, name: str) -> None:
        self.perform(ev.FirstByte(name))

    @rule(name=consumes(requests), ok=st.booleans())
    def finish(self, name: str, ok: bool) -> None:
        self.open.discard(name)
        self.perform(ev.RequestFinished(name, ok, ev.Usage(100, 5, 50)))

    @rule(name=consumes(requests))
    def cancel(self, name: str) -> None:
        self.perform(ev.RequestCancelled(name))

    @rule(name=requests, started=st.booleans())
    def fail(self, name: str, started: bool) -> None:
        self.perform(ev.LegFailed(name, "broke", started))
        if started:
            self.open.discard(name)

    @rule(unit=st.integers(0, 3), state=st.sampled_from(State))
    def change(self, unit: int, state: State) -> None:
        self.perform(ev.EndpointChanged(f"u{unit}", state))

    @rule(unit=st.integers(0, 3))
    def rejoin(self, unit: int) -> None:
        join(self.made, unit)

    @rule(unit=st.integers(0, 3))
    def leave(self, unit: int) -> None:
        self.perform(ev.EndpointLeft(f"u{unit}"))

    @invariant()
    def accounts_balance(self) -> None:
        fleet = self.made.fleet
        for name in ("inflight", "inflight_tokens", "pending", "pending_tokens"):
            assert float(getattr(fleet, name).min(initial=0.0)) >= -1e-6
        current = [f for f in self.made.flights if self.made.flights.current(f)]
        assert float(fleet.inflight.sum()) == len(current)
        for slot in range(len(fleet)):
            there = sum(f.prompt_tokens for f in current if f.slot == slot)
            assert fleet.inflight_tokens[slot] == there


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase


# --- pinned requests --------------------------------------------------------------------------


def pinned(number: int, unit: str, generation: int = 0) -> ev.RequestArrived:
    request = Request(id=f"p{number}", model="m", pinned_to=(unit, generation))
    return ev.RequestArrived(request)


def test_a_pinned_request_goes_to_its_endpoint_alone() -> None:
    made = director()
    for number in range(12):
        (command,) = made.handle(pinned(number, "u2"), 1.0 + number)
        assert isinstance(command, Dispatch)
        assert command.slot == 2
    (again,) = made.handle(ev.LegFailed("p3", "died"), 20.0)
    assert isinstance(again, Dispatch)
    assert (again.slot, again.attempt) == (2, 2)
    made.handle(ev.EndpointChanged("u2", State.EJECTED), 21.0)
    (rejected,) = made.handle(ev.LegFailed("p3", "died"), 22.0)
    assert isinstance(rejected, Reject)
    assert rejected.status == 404


def test_another_generation_is_another_endpoint() -> None:
    made = director()
    for event in (pinned(1, "u2", generation=7), pinned(2, "unknown")):
        (command,) = made.handle(event, 1.0)
        assert isinstance(command, Reject)
        assert command.status == 404


# --- tokens -----------------------------------------------------------------------------------


def tokenised(number: int, tokens: int, blocks: list[int]) -> ev.RequestArrived:
    request = Request(
        id=f"t{number}", model="m", prompt_bytes=9000, tokens=tokens, blocks=blocks,
        token_blocks=True,
    )  # fmt: skip
    return ev.RequestArrived(request)


IDS = b"".join(number.to_bytes(4, "little") for number in range(2000))
TOKEN_BLOCKS = block_hashes(IDS, SEED)


def test_tokens_that_are_known_are_what_counts() -> None:
    made = director(units=1)
    made.handle(tokenised(1, 2000, TOKEN_BLOCKS), 1.0)
    made.handle(tokenised(2, 2001, TOKEN_BLOCKS), 2.0)
    decision = next(iter(made.ledger))
    assert decision.prompt_tokens == 2001
    # 8 blocks of 64 tokens and as many of 256 as fit.
    assert decision.expected_cached_tokens == 512 + 5 * 256
    assert made.experience.block_bytes("m") == 4.0


def test_what_is_known_late_teaches_the_index() -> None:
    made = director(units=1)
    made.handle(ev.RequestArrived(Request(id="r", model="m", prompt_bytes=9000)), 1.0)
    assert made.handle(ev.Tokenised("r", 2000, TOKEN_BLOCKS), 1.1) == []
    assert len(made.index) == len(TOKEN_BLOCKS)
    made.handle(tokenised(2, 2000, TOKEN_BLOCKS), 2.0)
    assert next(iter(made.ledger)).expected_cached_tokens > 1700


def test_what_is_known_late_is_taken_back_with_a_failure() -> None:
    made = director(units=1)
    made.handle(ev.RequestArrived(Request(id="r", model="m", prompt_bytes=9000)), 1.0)
    made.handle(ev.Tokenised("r", 2000, TOKEN_BLOCKS), 1.1)
    made.handle(ev.RequestFinished("r", ok=False), 1.2)
    assert len(made.index) == 0
    made.handle(ev.Tokenised("r", 2000, TOKEN_BLOCKS), 1.3)  # nobody waits for it any more
    assert len(made.index) == 0


def test_a_waiting_request_is_sent_by_its_tokens() -> None:
    made = director(units=0)
    join(made, 0, State.STARTING)
    text = block_hashes(b"x" * 9000, SEED)
    waiting = Request(id="w", model="m", prompt_bytes=9000, blocks=text)
    assert made.handle(ev.RequestArrived(waiting), 1.0) == []
    made.handle(ev.Tokenised("w", 2000, TOKEN_BLOCKS), 1.1)
    (command,) = made.handle(ev.EndpointChanged("u0", State.READY), 1.2)
    assert isinstance(command, Dispatch)
    assert next(iter(made.ledger)).prompt_tokens == 2000
    assert len(made.index) == len(TOKEN_BLOCKS)
