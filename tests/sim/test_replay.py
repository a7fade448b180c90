"""Whatever happened to a Director, its log makes another one do the same."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl import compose, provenance
from infctl.core import events as ev
from infctl.core.director import Director
from infctl.core.eventlog import Header, Records, header_line
from infctl.core.fleet import SHARED, Endpoint, Load, State
from infctl.core.request import Request
from infctl.errors import InputError, MachineError
from infctl.profile.model import Profile
from infctl.router.recorder import Recorder, claim
from infctl.settings import director_settings
from infctl.sim.replay import Replay, lines, replay

UNITS, SLOTS = 4, 8
ROUTINGS: list[dict[str, Any]] = [
    {},
    {"picker": "weighted-random", "scorers": ["least-request", "kv-usage"]},
    {"picker": "round-robin"},
    {
        "picker": "power-of-two",
        "scorers": ["session-affinity", {"type": "queue-depth", "limit": 4}],
    },
    *({"scorers": [scorer]} for scorer in compose.names("scorer")),
    {"flow": {"hold": False}},
    {"flow": {"queue_max": 3, "queue_s": 0.5}, "hedge_share": 0.5, "retry_share": 0.5},
]


def profile(routing: dict[str, Any]) -> Profile:
    return Profile.model_validate(
        {
            "metadata": {"name": "t"},
            "models": [{"name": "m"}],
            "pools": [{"name": "p"}],
            "routing": routing,
        }
    )


class Recorded:
    """A Director as a router has it, whose log goes to a file."""

    def __init__(self, path: Path, routing: dict[str, Any], shared: int = 0) -> None:
        self.path = path
        self.profile = profile(routing)
        self.header = provenance.header(
            self.profile, seed=7, speed=2.0, wall_s=0.0, now=100.0, shared_slots=shared
        )
        self.director = provenance.director(self.header)
        self.stopped: list[str] = []
        self.recorder = Recorder(
            self.director, claim(str(path)), self.header, 1 << 30, self.stopped.append
        )

    def reload(self, routing: dict[str, Any], now: float) -> None:
        self.profile = profile(routing)
        settings = director_settings(self.profile.routing, self.header.speed)
        self.director.configure(compose.pipeline(self.profile), settings)
        self.recorder.policy_changed(self.profile, now)

    def replayed(self, policy: str | None = None) -> Replay:
        self.recorder.close()
        assert self.stopped == []
        return replay(self.path, policy)


class Dice:
    """Makes events out of small numbers: what happens, to whom, how much."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.now = 100.0
        self.count = 0
        self.open: list[str] = []

    def play(self, what: int, whom: int, much: int) -> None:
        self.now += 0.001 * much
        if what == 0:
            self.recorded.reload(ROUTINGS[whom % len(ROUTINGS)], self.now)
        elif what == 1:
            self.recorded.director.explain(self._request(whom, much), self.now)
        else:
            event = (
                self._fleet(what, whom, much) if what < 8 else self._request_event(what, whom, much)
            )
            self.recorded.recorder.handle(event, self.now)

    def _request(self, whom: int, much: int) -> Request:
        self.count += 1
        ids = much % 7 == 0
        return Request(
            id=f"r{self.count}", model="m" if much % 29 else "x", prompt_bytes=much * 300,
            max_tokens=10**25 if much % 31 == 0 else much % 5 * 10, stream=bool(whom % 3),
            blocks=[4 * (whom % 3) + 8, 4 * whom + 400, 4 * much + 4000], token_blocks=ids,
            tokens=much * 70 if ids else 0, session=f"s{whom % 4}", tenant=f"t{whom % 2}",
            priority=whom % 2, body_bytes=much, plain_text=bool(much % 3),
            pinned_to=(f"u{whom % UNITS}", 0) if much % 23 == 0 else None,
        )  # fmt: skip

    def _fleet(self, what: int, whom: int, much: int) -> ev.Event:
        unit = f"u{whom % UNITS}"
        if what == 2:
            endpoint = Endpoint(unit=unit, url="", models=("m",), pool="p", generation=much % 2)
            return ev.EndpointJoined(endpoint, State.READY if much % 2 else State.STARTING)
        if what == 3:
            return ev.EndpointLeft(unit) if much % 4 == 0 else ev.Tick()
        if what == 4:
            states = (State.READY, State.READY, State.STARTING, State.EJECTED, State.DRAINING)
            return ev.EndpointChanged(unit, states[much % 5])
        if what == 5:
            load = (
                Load(running=much / 3, waiting=float(whom), kv_usage=much / 100)
                if much % 9
                else None
            )
            return ev.LoadReported(unit, load)
        if what == 6:
            slots = len(self.recorded.director.fleet)
            loads = (np.arange(len(SHARED) * slots) * much % 17).reshape(len(SHARED), slots) / 3.0
            return ev.PeersReported(loads)
        slot = whom % max(len(self.recorded.director.fleet), 1)
        return ev.PrefixesReported([(slot, [4 * much + 4000, 8], bool(much % 3))])

    def _request_event(self, what: int, whom: int, much: int) -> ev.Event:
        if what < 12 or not self.open:
            request = self._request(whom, much)
            self.open.append(request.id)
            return ev.RequestArrived(request)
        name = self.open[whom % len(self.open)]
        if what < 16:
            return ev.FirstByte(name)
        if what == 16:
            return ev.FirstByteOverdue(name)
        if what == 17:
            return ev.HedgeSettled(name, bool(much % 2))
        if what == 18:
            return ev.Tokenised(name, much * 70, [4 * much + 8000, 4 * whom + 12000])
        if what == 19:
            started = bool(much % 2)
            return ev.LegFailed(name, "broken", started, started and much % 3 == 0, much)
        self.open.remove(name)
        if what == 20:
            return ev.RequestCancelled(name)
        usage = ev.Usage(much * 70, much % 40, much) if much % 4 else None
        return ev.RequestFinished(name, bool(much % 6), usage)


STEPS = st.lists(
    st.tuples(st.integers(0, 24), st.integers(0, 11), st.integers(1, 99)), max_size=120
)


@settings(max_examples=80, deadline=None)
@given(STEPS, st.sampled_from(ROUTINGS), st.sampled_from((0, SLOTS)))
def test_whatever_happened_happens_again(
    steps: list[tuple[int, int, int]], routing: dict[str, Any], shared: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded = Recorded(Path(folder) / "log", routing, shared)
        dice = Dice(recorded)
        for unit in range(UNITS - 1):
            dice.play(2, unit, 1)
        for step in steps:
            dice.play(*step)
        found = recorded.replayed()
    assert found.difference is None, found
    assert (found.left, found.damage, found.ended, found.notes) == (0, "", "the router ended", [])


def busy(path: Path, routing: dict[str, Any], steps: int = 600) -> Recorded:
    """A recording of much that happened."""
    recorded, random = Recorded(path, routing), Random(5)
    dice = Dice(recorded)
    for unit in range(UNITS):
        dice.play(2, unit, 1)
    for _ in range(steps):
        what = random.choice((5, 8, 9, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24))
        dice.play(what, random.randrange(12), random.randrange(1, 100))
    return recorded


def test_a_policy_that_raises_raises_again(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "moody.py").write_text(
        "import msgspec\n"
        "from infctl.plugin import Column, Fleet, Request\n"
        "class Moody(msgspec.Struct, frozen=True):\n"
        "    unit = 'share'\n"
        "    def score(self, request, fleet, cached):\n"
        "        if request.prompt_bytes % 7 == 0:\n"
        "            raise KeyError('moody')\n"
        "        return fleet.inflight * -1.0\n"
    )
    monkeypatch.setenv("INFCTL_PLUGIN_PATH", str(tmp_path))
    recorded = Recorded(tmp_path / "log", {"scorers": ["moody:Moody"]})
    recorded.recorder.handle(
        ev.EndpointJoined(Endpoint(unit="u0", url="", models=("m",)), State.READY), 100.0
    )
    raised = 0
    for number in range(20):
        request = Request(id=f"r{number}", model="m", prompt_bytes=number)
        try:
            recorded.recorder.handle(ev.RequestArrived(request), 101.0)
        except KeyError:
            raised += 1
    assert raised == 3
    found = recorded.replayed()
    assert (found.difference, found.requests, found.commands) == (None, 20, 17)
    (tmp_path / "moody.py").write_text((tmp_path / "moody.py").read_text().replace("% 7", "% 5"))
    monkeypatch.delitem(__import__("sys").modules, "moody")
    found = replay(recorded.path)
    assert found.notes == ["scorer moody:Moody: its source file has changed"]
    assert found.difference is not None
    assert found.difference.recorded == "Dispatch(request_id='r5', slot=0, attempt=1, "\
        "cached_tokens=0, queue_ms=0.0, hedge_after_s=0.0)"  # fmt: skip
    assert found.difference.replayed == "the policy raised KeyError"
    assert found.difference.event == "RequestArrived r5"


def test_another_seed_is_found_out_at_its_first_choice(tmp_path: Path) -> None:
    recorded = busy(tmp_path / "log", {"picker": "power-of-two"})
    assert recorded.replayed().difference is None
    head, _, rest = recorded.path.read_bytes().partition(b"\n")
    assert head.count(b'"seed":7,') == 1
    recorded.path.write_bytes(head.replace(b'"seed":7,', b'"seed":8,') + b"\n" + rest)
    found = replay(recorded.path)
    assert found.difference is not None
    assert 4 < found.difference.record < 60
    told = list(lines(found))
    assert told[1].startswith(f"first difference: record {found.difference.record} at ")
    assert "RequestArrived r" in told[1]
    assert told[2].startswith("  recorded: Dispatch(request_id=")


def test_another_policy_is_asked_and_decides_nothing(tmp_path: Path) -> None:
    recorded = busy(tmp_path / "log", {})
    own = recorded.replayed("predicted-ttft")
    assert (own.difference, own.otherwise) == (None, 0)
    assert own.choices > 100
    other = replay(recorded.path, "round-robin")
    assert (other.difference, other.choices) == (None, own.choices)
    assert 0.3 < other.otherwise / other.choices < 0.95
    assert list(lines(other))[-1].startswith(f"another choice: {other.otherwise} of {own.choices}")
    with pytest.raises(InputError, match="no policy"):
        replay(recorded.path, "round-robbin")


def test_another_policy_follows_a_reload(tmp_path: Path) -> None:
    recorded = busy(tmp_path / "log", {"picker": "power-of-two"}, 100)
    recorded.reload({"picker": "best"}, 120.0)
    assert recorded.replayed("least-request").difference is None


def test_a_log_that_was_cut_off_says_so(tmp_path: Path) -> None:
    recorded = busy(tmp_path / "log", {})
    whole = recorded.replayed()
    assert list(lines(whole))[1:] == ["identical"]
    data = recorded.path.read_bytes()
    recorded.path.write_bytes(data[: len(data) * 2 // 3])
    found = replay(recorded.path)
    assert found.difference is None
    assert 0 < found.events < whole.events
    assert "cut off" in list(lines(found))[-1]
    head = data[: data.index(b"\n") + 1]
    recorded.path.write_bytes(head)
    assert replay(recorded.path).events == 0
    recorded.path.write_bytes(data[:-50] + bytes(50))
    found = replay(recorded.path)
    assert found.difference is not None or found.damage


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x"
    with pytest.raises(MachineError, match="No such file"):
        replay(file)
    for data in (b"", b"hello\n", Random(1).randbytes(10_000)):
        file.write_bytes(data)
        with pytest.raises(InputError, match="not an event log"):
            replay(file)


def header(**changes: Any) -> Header:
    made = provenance.header(profile({}), seed=1, speed=1.0, wall_s=0.0, now=0.0)
    return type(made)(**{name: getattr(made, name) for name in made.__struct_fields__} | changes)


def test_other_versions_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(header_line(header(infctl="0.0.9", numpy="1.0")))
    notes = replay(file).notes
    assert [n.split(" ")[:3] for n in notes] == [
        ["infctl", "0.0.9", "then,"],
        ["numpy", "1.0", "then,"],
    ]
    gone = provenance.policy(profile({}))
    gone.profile["routing"]["picker"] = "lost:Lost"
    file.write_bytes(header_line(header(policy=gone)))
    with pytest.raises(InputError, match="picker 'lost:Lost' cannot be imported"):
        replay(file)
    gone.profile["routing"]["picker"] = "best"
    gone.profile["routing"]["mood"] = 1
    file.write_bytes(header_line(header(policy=gone)))
    with pytest.raises(InputError, match="does not take the profile in the log"):
        replay(file)


def test_recording_costs_a_request_little() -> None:
    """Three events; a generous bound, for machines that are busy."""
    records = Records()
    request = Request(id="r1", model="m", name="n" * 20, blocks=[2**63 + n for n in range(20)])
    events = (ev.RequestArrived(request), ev.FirstByte("r1"), ev.RequestFinished("r1", True))
    best = 1.0
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(100):
            for event in events:
                records.begin(1.0, event)
                records.end([])
        best = min(best, (time.perf_counter() - started) / 100)
        records.take()
    assert best < 30e-6


def test_asking_for_explanations_changes_nothing() -> None:
    def ask(name: str, number: int, **more: Any) -> Request:
        blocks = [4, 400 + 4 * number, 4000 + 4 * number]
        return Request(id=name, model="m", prompt_bytes=200_000, blocks=blocks, **more)

    def run(asks: bool) -> list[Any]:
        director = Director(compose.pipeline(profile({})), Random(1))
        for unit in range(UNITS):
            endpoint = Endpoint(unit=f"u{unit}", url="", models=("m",), pool="p")
            director.handle(ev.EndpointJoined(endpoint, State.READY), 0.0)
            director.handle(ev.LoadReported(f"u{unit}", Load(running=9.0, waiting=1.0)), 0.1)
        assert director.homes.share > 0.9  # so homes decide, too
        found: list[Any] = []
        for number in range(200):
            now = 0.2 + number
            request = ask(f"r{number}", number)
            for _ in range(6 if asks else 0):
                director.explain(ask("e", number, token_blocks=True), now)
            found += director.handle(ev.RequestArrived(request), now)
            found += director.handle(ev.LoadReported("u1", Load(kv_capacity_tokens=90)), now)
            found += director.handle(ev.RequestFinished(f"r{number}", True), now + 0.1)
        return [*found, director.experience.block_bytes("m")]

    assert run(asks=False) == run(asks=True)
