"""Go now, wait, or be turned away: as playbooks through the Director."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from infctl import compose
from infctl.core import events as ev
from infctl.core.commands import Command, Dispatch, Reject, Shed
from infctl.core.director import Director, Settings
from infctl.core.fleet import Endpoint, Load, State
from infctl.core.prefix import block_hashes, prefix_seed
from infctl.core.request import Request
from infctl.profile.model import Profile

BIG = 30_000
"""Tokens of a prompt that fills an endpoint: 1.5 s at the speed of one not seen yet."""


def director(units: int = 1, state: State = State.READY, **limits: object) -> Director:
    profile = Profile.model_validate(
        {"metadata": {"name": "t"}, "models": [{"name": "m"}], "pools": [{"name": "p"}]}
    )
    made = Director(
        compose.pipeline(profile),
        random.Random(1),
        Settings(**limits),  # type: ignore[arg-type]
    )
    for number in range(units):
        join(made, number, state)
    return made


def join(
    made: Director,
    number: int,
    state: State = State.READY,
    models: tuple[str, ...] = ("m", "alias"),
) -> list[Command]:
    endpoint = Endpoint(unit=f"u{number}", url="", models=models, pool=models[0])
    return made.handle(ev.EndpointJoined(endpoint, state), 0.0)


def arrive(
    made: Director, name: str, now: float = 1.0, tokens: int = BIG, **more: object
) -> list[Command]:
    fields = {"model": "m", "stream": True} | more
    request = Request(id=name, name=name, prompt_bytes=tokens * 4, **fields)  # type: ignore[arg-type]
    return made.handle(ev.RequestArrived(request), now)


def ids(commands: list[Command]) -> list[str]:
    assert all(isinstance(c, Dispatch) for c in commands)
    return [c.request_id for c in commands]


def rejected(commands: list[Command]) -> Reject:
    (command,) = commands
    assert isinstance(command, Reject)
    return command


def test_a_request_waits_while_every_endpoint_is_saturated() -> None:
    made = director(1)
    assert ids(arrive(made, "a")) == ["a"]
    assert arrive(made, "b") == []
    assert arrive(made, "c") == []
    (command,) = made.handle(ev.FirstByte("a"), 2.5)
    assert command == Dispatch("b", 0, 1, 0, queue_ms=1500.0)
    (decision,) = made.ledger.find("b")
    assert decision.queue_ms == 1500.0
    assert made.handle(ev.FirstByte("a"), 2.6) == []
    assert made.flow.waiting() == [(1, BIG + 256.0), (0, 0.0)]


@pytest.mark.parametrize(
    "event",
    [
        ev.FirstByte("a"),
        ev.RequestFinished("a", True),
        ev.RequestFinished("a", False),
        ev.RequestCancelled("a"),
        ev.LegFailed("a", "cut", started=True),
        ev.EndpointJoined(Endpoint(unit="new", url="", models=("m",), pool="p"), State.READY),
        ev.EndpointChanged("u1", State.READY),
    ],
    ids=lambda e: type(e).__name__,
)
def test_whatever_frees_room_lets_the_next_one_go(event: ev.Event) -> None:
    made = director(1)
    join(made, 1, State.DRAINING)
    arrive(made, "a")
    assert arrive(made, "b") == []
    commands = made.handle(event, 1.5)
    assert [c.request_id for c in commands if isinstance(c, Dispatch)] == ["b"]


def test_a_report_and_time_let_go_too() -> None:
    made = director(1)
    for n in range(40):
        arrive(made, f"r{n}", tokens=10)
    made.handle(ev.LoadReported("u0", Load(waiting=38.0)), 1.0)
    assert arrive(made, "x", tokens=10) == []
    assert ids(made.handle(ev.LoadReported("u0", Load(waiting=0.0)), 2.0)) == ["x"]
    made = director(1)
    arrive(made, "a")
    assert arrive(made, "b") == []
    assert made.handle(ev.Tick(), 1.4) == []
    assert ids(made.handle(ev.Tick(), 1.6)) == ["b"]


def backlog(made: Director, slot: int, tokens: float) -> None:
    """So many prompt tokens are ahead, at 20 a ms."""
    made.fleet.cells["pending_tokens"][slot] = tokens
    made.fleet.cells["free_at_ms"][slot] = made.fleet.now_ms + tokens * 0.05


def known_at_u0(made: Director) -> list[int]:
    """Blocks of a prompt of 100,000 tokens, 5 s of work, that u0 has in its cache."""
    blocks = block_hashes(random.Random(1).randbytes(400_000), prefix_seed("m"))
    made.index.insert(0, blocks)
    return blocks


def test_the_policy_may_choose_a_full_endpoint_while_anotherhas_room() -> None:
    made = director(2)
    blocks = known_at_u0(made)
    backlog(made, 0, 60_000)
    (command,) = arrive(made, "a", now=0.0, tokens=100_000, blocks=blocks)
    assert isinstance(command, Dispatch)
    assert command.slot == 0


@pytest.mark.parametrize(("priority", "slot"), [(0, 1), (1, 0)])
def test_urgent_requests_avoid_what_is_far_too_full_while_others_wait(
    priority: int, slot: int
) -> None:
    made = director(2)
    blocks = known_at_u0(made)
    backlog(made, 0, 60_000)
    backlog(made, 1, 25_000)
    assert arrive(made, "a", now=0.0, tokens=100_000, blocks=blocks, priority=priority) == []
    assert arrive(made, "b", now=0.0, priority=1) == []
    backlog(made, 1, 0)
    first = made.handle(ev.Tick(), 0.0)[0]
    assert isinstance(first, Dispatch)
    assert (first.request_id, first.slot) == ("a", slot)


def test_an_arrival_waits_behind_its_class_but_not_behind_a_lower_one() -> None:
    made = director(1)
    arrive(made, "a")
    arrive(made, "batch", priority=1)
    arrive(made, "first")
    arrive(made, "second")
    order = []
    for name in ("a", "first", "second"):
        order += ids(made.handle(ev.FirstByte(name), 2.0))
    assert order == ["first", "second", "batch"]


def test_a_tenant_that_floods_does_not_hold_up_another() -> None:
    made = director(1)
    arrive(made, "start")
    for n in range(20):
        arrive(made, f"f{n}", tenant="flood")
    arrive(made, "q0", tenant="quiet")
    arrive(made, "q1", tenant="quiet")
    order = ["start"]
    while len(order) < 6:
        order += ids(made.handle(ev.FirstByte(order[-1]), 2.0))
    assert {"q0", "q1"} <= set(order)


def test_the_deadline_is_a_429_with_the_time_the_queue_takes() -> None:
    made = director(1, queue_s=5.0)
    arrive(made, "a", 1.0)
    arrive(made, "b", 1.0)
    arrive(made, "c", 1.0, patience_s=2.0)
    arrive(made, "d", 1.0, patience_s=60.0)
    made.fleet.cells["pending_tokens"][0] = made.fleet.cells["free_at_ms"][0] = 1e9
    command = rejected(made.handle(ev.Tick(), 3.0))
    assert (command.request_id, command.status, command.shed) == ("c", 429, Shed.DEADLINE)
    assert (command.queue_ms, command.retry_after_s) == (2000.0, 60)
    late = made.handle(ev.Tick(), 6.0)
    assert sorted(c.request_id for c in late) == ["b", "d"]
    assert made.handle(ev.Tick(), 7.0) == []


def test_a_full_queue_displaces_the_newest_of_the_lowest_class() -> None:
    made = director(1, queue_max=2)
    arrive(made, "a")
    arrive(made, "b0", priority=1)
    arrive(made, "b1", priority=1)
    command = rejected(arrive(made, "c"))
    assert (command.request_id, command.status, command.shed) == ("b1", 429, Shed.DISPLACED)
    command = rejected(arrive(made, "b2", priority=1))
    assert (command.request_id, command.status, command.shed) == ("b2", 429, Shed.FULL)
    assert command.retry_after_s is not None


def test_a_client_that_leaves_is_gone_at_once() -> None:
    made = director(1)
    arrive(made, "a")
    arrive(made, "b")
    assert made.handle(ev.RequestCancelled("b"), 1.1) == []
    assert made.handle(ev.FirstByte("a"), 1.2) == []
    assert (len(made.flow), len(made.flights)) == (0, 1)


def test_a_retry_does_not_wait_again() -> None:
    made = director(2)
    arrive(made, "a")
    arrive(made, "b")
    assert arrive(made, "c") == []
    first, second = made.handle(ev.LegFailed("a", "refused"), 1.1)
    assert isinstance(first, Dispatch)
    assert (first.request_id, first.slot, first.attempt) == ("a", 1, 2)
    assert (second.request_id, type(second)) == ("c", Dispatch)


def test_requests_wait_for_an_endpoint_on_its_way_up() -> None:
    for state in (State.STARTING, State.EJECTED):
        made = director(1, state)
        assert arrive(made, "a", tokens=10) == []
        assert arrive(made, "b", tokens=10, model="alias") == []
        assert rejected(arrive(made, "x", model="nobody's")).status == 404
        commands = made.handle(ev.EndpointChanged("u0", State.READY), 3.0)
        assert sorted(ids(commands)) == ["a", "b"]
        assert {c.queue_ms for c in commands if isinstance(c, Dispatch)} == {2000.0}


def test_what_never_comes_up_is_a_503_at_the_deadline() -> None:
    made = director(1, State.STARTING, queue_s=5.0)
    arrive(made, "a")
    assert made.handle(ev.Tick(), 5.0) == []
    command = rejected(made.handle(ev.Tick(), 6.0))
    assert (command.status, command.shed, command.retry_after_s) == (503, Shed.UNREADY, 60)


def test_nothing_to_wait_for_is_a_503_at_once() -> None:
    assert rejected(arrive(director(0), "a")).status == 503
    assert rejected(arrive(director(1, State.DRAINING), "a")).status == 503


def test_the_last_endpoint_that_fails_holds_its_requests_until_it_is_back() -> None:
    made = director(1)
    arrive(made, "a", tokens=10)
    made.handle(ev.EndpointChanged("u0", State.EJECTED), 1.1)
    assert made.handle(ev.LegFailed("a", "refused"), 1.1) == []
    assert arrive(made, "b", tokens=10) == []
    first, second = made.handle(ev.EndpointChanged("u0", State.READY), 2.0)
    assert isinstance(first, Dispatch)
    assert (first.request_id, first.attempt, round(first.queue_ms)) == ("a", 2, 900)
    assert ids([second]) == ["b"]


def test_without_hold_requests_go_to_full_endpoints_and_wait_there() -> None:
    made = director(2, hold=False)
    assert [ids(arrive(made, name)) for name in "abcdef"] == [[name] for name in "abcdef"]
    assert len(made.flow) == 0
    assert made.fleet.inflight.tolist() == [3.0, 3.0]


def test_without_hold_requests_still_wait_for_an_endpoint_on_its_way_up() -> None:
    made = director(1, State.STARTING, hold=False)
    assert [arrive(made, name) for name in "abcd"] == [[]] * 4
    # Room or not, all go at once: each of them fills an endpoint.
    assert ids(made.handle(ev.EndpointChanged("u0", State.READY), 2.0)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("hold", "slot"), [(True, 1), (False, 0)])
def test_without_hold_urgent_requests_do_not_avoid_full_endpoints(hold: bool, slot: int) -> None:
    made = director(2, hold=hold)
    join(made, 2, State.STARTING, models=("other",))
    blocks = known_at_u0(made)
    assert arrive(made, "waits", now=0.0, model="other", priority=1) == []
    backlog(made, 0, 60_000)
    (command,) = arrive(made, "a", now=0.0, tokens=100_000, blocks=blocks)
    assert isinstance(command, Dispatch)
    assert command.slot == slot


def test_hold_can_be_switched_while_requests_wait() -> None:
    made = director(1)
    arrive(made, "a")
    assert [arrive(made, name) for name in "bc"] == [[], []]
    made.configure(made.pipeline, Settings(hold=False))
    assert ids(made.handle(ev.Tick(), 1.5)) == ["b", "c"]
    made.configure(made.pipeline, Settings())
    assert arrive(made, "d") == []


def test_one_model_waits_and_another_goes() -> None:
    made = director(1)
    join(made, 1, models=("other",))
    arrive(made, "a")
    assert arrive(made, "b") == []
    assert ids(arrive(made, "c", model="other")) == ["c"]
    assert arrive(made, "d", model="other") == []
    assert ids(made.handle(ev.FirstByte("c"), 1.4)) == ["d"]
    assert len(made.flow) == 1


def test_a_policy_that_raises_costs_the_request_it_raised_on() -> None:
    made = director(1)
    bugs: list[Exception] = []
    made.admission.on_bug = bugs.append
    arrive(made, "a")
    arrive(made, "b")
    scorer = made.pipeline.scorers

    class Broken:
        unit = "ms"

        def score(self, *_: object) -> None:
            raise RuntimeError("boom")

    made.pipeline.scorers = (type(scorer[0])("broken", Broken()),)  # type: ignore[arg-type]
    command = rejected(made.handle(ev.FirstByte("a"), 2.0))
    assert (command.request_id, command.status, [str(b) for b in bugs]) == ("b", 500, ["boom"])


def test_a_filter_that_raises_still_gives_an_answer_at_the_deadline() -> None:
    made = director(1, queue_s=5.0)
    bugs: list[Exception] = []
    made.admission.on_bug = bugs.append
    arrive(made, "a")
    arrive(made, "b")

    class Broken:
        def key(self, request: Request) -> None:
            return None

        def allow(self, *_: object) -> None:
            raise RuntimeError("boom")

    made.pipeline.filters = (("broken", Broken()),)  # type: ignore[assignment]
    made.handle(ev.EndpointChanged("u0", State.DRAINING), 1.0)
    assert rejected(made.handle(ev.Tick(), 7.0)).request_id == "b"
    assert bugs


def test_without_anything_waiting_ticks_do_nothing() -> None:
    assert director(1).handle(ev.Tick(), 1.0) == []


class Machine(RuleBasedStateMachine):
    """Any order of events: one terminal command a request, bounded queues, no dispatch to an
    endpoint that is not ready, and nothing that waits while an endpoint has room for it."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.made = director(2, queue_max=4, queue_s=3.0, backlog_s=0.05)
        self.now = 1.0
        self.number = 0
        self.open: set[str] = set()
        self.at: dict[str, int] = {}
        self.answers: Counter[str] = Counter()

    def perform(self, event: ev.Event) -> None:
        for command in self.made.handle(event, self.now):
            name = command.request_id
            if name not in self.open:
                assert self.answers[name] == 0
                continue
            if isinstance(command, Dispatch):
                assert self.made.fleet.states[command.slot] is State.READY
                assert name not in self.at
                self.at[name] = command.slot
            else:
                self.open.remove(name)
                self.answers[name] += 1
                assert self.answers[name] == 1

    @rule(
        target=requests,
        tokens=st.integers(0, 3000),
        priority=st.integers(0, 1),
        tenant=st.sampled_from("xyz"),
        stream=st.booleans(),
        model=st.sampled_from(["m", "alias"]),
    )
    def arrive(self, tokens: int, priority: int, tenant: str, stream: bool, model: str) -> str:
        self.number += 1
        name = f"r{self.number}"
        self.open.add(name)
        request = Request(
            id=name, model=model, prompt_bytes=tokens * 4, stream=stream, priority=priority,
            tenant=tenant,
        )  # fmt: skip
        self.perform(ev.RequestArrived(request))
        return name

    @rule(name=requests)
    def first_byte(self, name: str) -> None:
        if name in self.at:
            self.perform(ev.FirstByte(name))

    @rule(name=requests, ok=st.booleans())
    def finish(self, name: str, ok: bool) -> None:
        if self.at.pop(name, None) is not None:
            self.open.discard(name)
            self.perform(ev.RequestFinished(name, ok, ev.Usage(100, 5, 50)))

    @rule(name=requests)
    def cancel(self, name: str) -> None:
        if name in self.open:
            self.open.remove(name)
            self.at.pop(name, None)
            self.perform(ev.RequestCancelled(name))

    @rule(name=requests)
    def fail(self, name: str) -> None:
        if self.at.pop(name, None) is not None:
            self.perform(ev.LegFailed(name, "broke"))

    @rule(unit=st.integers(0, 2), waiting=st.integers(0, 9))
    def report(self, unit: int, waiting: int) -> None:
        self.perform(ev.LoadReported(f"u{unit}", Load(waiting=float(waiting))))

    @rule(unit=st.integers(0, 2), state=st.sampled_from(State))
    def change(self, unit: int, state: State) -> None:
        self.perform(ev.EndpointChanged(f"u{unit}", state))

    @rule(unit=st.integers(0, 2), state=st.sampled_from(State))
    def rejoin(self, unit: int, state: State) -> None:
        endpoint = Endpoint(unit=f"u{unit}", url="", models=("m", "alias"), pool="p")
        self.perform(ev.EndpointJoined(endpoint, state))

    @rule(unit=st.integers(0, 2))
    def leave(self, unit: int) -> None:
        self.perform(ev.EndpointLeft(f"u{unit}"))

    @rule(seconds=st.floats(0.0, 2.0))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.perform(ev.Tick())

    @invariant()
    def every_open_request_waits_or_is_somewhere(self) -> None:
        assert len(self.made.flow) <= 4
        waiting = self.open - self.at.keys()
        assert len(self.made.flow) == len(waiting)
        assert {f.request.id for f in self.made.flights} == self.at.keys()

    @invariant()
    def nothing_waits_where_there_is_room(self) -> None:
        for _, request in self.made.flow.lanes():
            assert not self.made.admission.has_room(request)

    @invariant()
    def accounts_balance(self) -> None:
        fleet = self.made.fleet
        unstarted = fleet.sent - fleet.started
        assert float(unstarted.min(initial=0.0)) >= 0.0
        current = [f for f in self.made.flights if self.made.flights.current(f)]
        assert float(unstarted.sum()) == sum(not f.first_byte_ms for f in current)

    def teardown(self) -> None:
        self.now += 10.0
        self.perform(ev.Tick())
        assert self.open <= self.at.keys()
        super().teardown()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
