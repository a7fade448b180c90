"""Conformance checks for plugins: call one from your own test, it says what is wrong.

    from infctl.testing import check_engine

    def test_my_engine() -> None:
        check_engine(MyEngine())

Every check raises AssertionError with a telling message and returns nothing. Engines, filters and
scorers are given as instances; a picker may keep state between picks, so it is given as something
that makes one.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from infctl.core.fleet import Endpoint, Fleet, Load, State
from infctl.core.request import Request, Role
from infctl.core.scheduling import Filter, Picker, Scorer
from infctl.engine import Capabilities, Engine, Parallel, Probe, RankCommand, UnitSpec
from infctl.errors import InputError
from infctl.timing import Decode, Prefill, TimingModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.core.fleet import Column

_SIZES = (1, 3, 40)
_SECRET = "conformance-secret-value"
_CLIENT_FIELDS = frozenset({"model", "prompt", "messages", "stream", "max_tokens", "temperature"})
_GARBAGE = (
    "",
    "\n\n\n",
    "\x00\x01\ufffd{}",
    "# HELP only comments\n# TYPE only gauge\n",
    'no_value\nno_close{a="b\nnot_a_number{} x\n',
    "<html><body>502 Bad Gateway</body></html>",
    "{" * 2000,
)


# -- engines -------------------------------------------------------------------------------------


def check_engine(engine: Engine) -> None:
    """An engine codec: constants, command lines, log lines, metrics, probes."""
    assert isinstance(engine, Engine), f"{engine!r} lacks a part of infctl.plugin.Engine"
    _check_constants(engine)
    for unit in _units():
        _check_commands(engine, unit)
    for text in _GARBAGE:
        phase = engine.phase(text)
        assert phase is None or (isinstance(phase, str) and phase), f"phase({text!r}) is {phase!r}"
        _check_metrics(engine, text)
        found = engine.recognises(Probe(text.encode(), text))
        assert found is False, f"recognises() takes garbage for its own: {text!r}"
    assert engine.phase("an unrelated line of a log") is None, "phase() answers any line"
    if engine.metrics_path is not None:
        assert engine.missing(""), "missing('') must name the series that are not there"


def _check_constants(engine: Engine) -> None:
    assert engine.name == engine.name.lower().strip() != "", f"name {engine.name!r}: lower case"
    assert isinstance(engine.capabilities, Capabilities), "capabilities must be Capabilities"
    assert engine.health_path.startswith("/"), f"health_path {engine.health_path!r} needs a /"
    path = engine.metrics_path
    assert path is None or path.startswith("/"), f"metrics_path {path!r} needs a /"
    assert engine.capabilities.metrics == (path is not None), (
        "capabilities.metrics and metrics_path disagree"
    )
    variable = engine.python_env
    assert variable is None or (variable.isidentifier() and variable.isupper()), (
        f"python_env {variable!r} is no environment variable"
    )
    assert isinstance(engine.owned_fields, frozenset), "owned_fields must be a frozenset"
    taken = engine.owned_fields & _CLIENT_FIELDS
    assert not taken, f"owned_fields would strip what clients need: {sorted(taken)}"


def _units() -> tuple[UnitSpec, ...]:
    timing = TimingModel(
        prefill=Prefill(10.0, 0.01, 0.0),
        decode=Decode(5.0, 0.0, 0.1, 0.0),
        kv_capacity_tokens=100_000,
        source="conformance check",
    )
    one = UnitSpec(
        unit="unit-0",
        model="some-model",
        model_path="/models/some-model",
        host="127.0.0.1",
        port=23_457,
        env={"CONFORMANCE": _SECRET},
        timing=timing,
    )
    two = msgspec.structs.replace(
        one,
        nodes=2,
        gpus_per_node=8,
        parallel=Parallel(tp=8, dp=2),
        master_port=23_458,
        event_port=23_459,
        aliases=("another-name",),
        context_tokens=4096,
    )
    return one, two


def _check_commands(engine: Engine, unit: UnitSpec) -> None:
    try:
        commands = engine.commands(unit)
    except InputError as error:
        if not error.hint:
            raise AssertionError("an InputError of commands() needs a hint") from error
        return
    assert isinstance(commands, tuple), "commands() must return a tuple"
    assert commands, "commands() must return at least one RankCommand"
    assert len(commands) <= unit.nodes, f"{len(commands)} commands for {unit.nodes} nodes"
    assert engine.commands(unit) == commands, "commands() differs between two equal calls"
    for command in commands:
        _check_command(command)
    argv = commands[0].argv
    assert any(str(unit.port) in word for word in argv), "rank 0 is not told its port"
    names = (unit.model, unit.model_path)
    assert any(name in word for word in argv for name in names), "rank 0 is not told its model"


def _check_command(command: RankCommand) -> None:
    assert command.argv, "a RankCommand's argv must not be empty"
    assert all(isinstance(word, str) for word in command.argv), "argv must hold strings"
    assert not any("\x00" in word for word in command.argv), "argv holds a NUL"
    assert not any(_SECRET in word for word in command.argv), (
        "a value of the environment is on the command line, where everybody can read it"
    )
    values = [*command.env.keys(), *command.env.values()]
    assert all(isinstance(value, str) for value in values), "env must map strings to strings"
    assert command.env.get("CONFORMANCE") == _SECRET, "the unit's env does not reach the process"


def _check_metrics(engine: Engine, text: str) -> None:
    loads = engine.loads(text)
    assert isinstance(loads, dict), "loads() must return a dict of rank → Load"
    for rank, load in loads.items():
        assert isinstance(rank, int), f"loads() must map ranks to Loads, not {rank!r}"
        assert isinstance(load, Load), f"loads() must map ranks to Loads, not to {load!r}"
        for name, value in msgspec.structs.asdict(load).items():
            assert value is None or math.isfinite(value), f"{name} is {value} for {text!r}"
    missing = engine.missing(text)
    assert isinstance(missing, tuple), "missing() must return a tuple of names"


# -- policies ------------------------------------------------------------------------------------


def check_filter(item: Filter) -> None:
    """A filter: a hashable key, a boolean per slot, equal masks for equal keys, no side effects."""
    assert isinstance(item, Filter), f"{item!r} lacks a part of infctl.plugin.Filter"
    for size in _SIZES:
        fleet = _fleet(size)
        before = _columns(fleet)
        masks: dict[Any, list[bool]] = {}
        for request in _requests():
            key = item.key(request)
            hash(key)
            mask = item.allow(request, fleet)
            assert mask.shape == (len(fleet),), f"allow() returned {mask.shape} for {size} slots"
            assert mask.dtype == np.bool_, f"allow() must return booleans, not {mask.dtype}"
            values = [bool(v) for v in mask]
            assert masks.setdefault(key, values) == values, f"two masks for one key {key!r}"
        _check_untouched(fleet, before, "allow()")


def check_scorer(item: Scorer) -> None:
    """A scorer: one finite float per slot, in its unit's range, repeatable, no side effects."""
    assert isinstance(item, Scorer), f"{item!r} lacks a part of infctl.plugin.Scorer"
    assert item.unit in ("share", "ms"), f"unit must be share or ms, not {item.unit!r}"
    for size in _SIZES:
        fleet = _fleet(size)
        before = _columns(fleet)
        for request in _requests():
            cached = np.minimum(np.arange(size) % 5 * 16.0, request.prompt_tokens)
            kept = cached.copy()
            column = item.score(request, fleet, cached)
            _check_column(column, size, item.unit)
            again = item.score(request, fleet, cached)
            assert np.array_equal(column, again), "score() differs between two equal calls"
            assert np.array_equal(cached, kept), "score() changed `cached`"
        _check_untouched(fleet, before, "score()")


def _check_column(column: Column, size: int, unit: str) -> None:
    assert column.shape == (size,), f"score() returned {column.shape} for {size} slots"
    assert column.dtype == np.float64, f"score() must return float64, not {column.dtype}"
    assert np.isfinite(column).all(), f"score() returned {column}: every slot needs a number"
    if unit == "share":
        assert (column <= 1).all(), f"a share is at most 1 (penalties go below 0), got {column}"
    else:
        assert (column <= 0).all(), f"a cost in ms is minus that many ms, got {column}"


def check_picker(make: Callable[[], Picker]) -> None:
    """A picker: always an allowed slot, the same ones for the same seed, scores left alone."""
    first, second = make(), make()
    assert isinstance(first, Picker), f"{first!r} lacks a part of infctl.plugin.Picker"
    assert isinstance(first.uses_scores, bool), "uses_scores must be a bool"
    draws = random.Random(1)
    seeds = random.Random(7), random.Random(7)
    for _ in range(300):
        size = draws.choice((1, 2, 3, 8, 40))
        fleet, scores = _fleet(size), _scores(size, draws)
        kept = scores.copy()
        slot = first.pick(scores, fleet, seeds[0])
        assert isinstance(slot, int), f"pick() must return an int, not {type(slot).__name__}"
        assert 0 <= slot < size, f"there is no slot {slot} among {size}"
        assert scores[slot] > -np.inf, f"slot {slot} is not allowed: {scores}"
        assert np.array_equal(scores, kept), "pick() changed the scores"
        again = second.pick(scores, fleet, seeds[1])
        assert slot == again, "two pickers with the same seed chose differently"


def _scores(size: int, draws: random.Random) -> Column:
    """Costs or shares, with ties, some slots forbidden, never all."""
    scale = draws.choice((1.0, -1000.0))
    scores = np.array([scale * draws.choice((0.0, 0.5, draws.random())) for _ in range(size)])
    allowed = draws.randrange(size)
    for slot in range(size):
        if slot != allowed and draws.random() < 0.3:
            scores[slot] = -np.inf
    return scores


def _requests() -> tuple[Request, ...]:
    return (
        Request(id="a", model="m0"),
        Request(id="b", model="m1", prompt_tokens=1000, blocks=[1, 2, 3], session="s"),
        Request(id="c", model="unknown", prompt_tokens=100_000, max_tokens=10, role=Role.DECODE),
        Request(id="d", model="m0", session="s", stream=True),
    )


def _fleet(size: int) -> Fleet:
    """`size` slots in every state and role, with loads; one slot is free again."""
    draws = random.Random(size)
    fleet = Fleet()
    states, roles = list(State), list(Role)
    for index in range(size):
        endpoint = Endpoint(
            unit=f"unit-{index}",
            url=f"http://127.0.0.1:{9000 + index}",
            models=(f"m{index % 2}",),
            role=roles[index % len(roles)],
            rtt_ms=float(index % 3),
            kv_capacity_tokens=index % 2 * 100_000,
        )
        slot = fleet.add(endpoint, states[index % len(states)])
        fleet.report(slot, Load(running=draws.randrange(300), waiting=draws.randrange(300)))
        for name in ("inflight", "pending"):
            fleet.cells[name][slot] = float(draws.randrange(300))
        fleet.cells["kv_usage"][slot] = draws.random()
    if size > 2:
        fleet.remove("unit-1")
    return fleet


def _columns(fleet: Fleet) -> dict[str, Column]:
    return {name: getattr(fleet, name).copy() for name in fleet.COLUMNS}


def _check_untouched(fleet: Fleet, before: dict[str, Column], what: str) -> None:
    for name, column in _columns(fleet).items():
        assert np.array_equal(column, before[name]), f"{what} changed the fleet's {name}"
