"""The conformance kit accepts what is right and says what is wrong."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from infctl.plugin import Column, Fleet, Load, Mask, RankCommand, Request, UnitSpec
from infctl.testing.conformance import check_engine, check_filter, check_picker, check_scorer
from infctl_plugins.engines.vllm import Vllm

if TYPE_CHECKING:
    from random import Random


def plugins(kind: str) -> list[Any]:
    """Everything registered for a seam."""
    found = entry_points(group=f"infctl.{kind}")
    return [pytest.param(point, id=point.name) for point in found]


@pytest.mark.parametrize("point", plugins("filter"))
def test_registered_filters(point: Any) -> None:
    check_filter(point.load()())


@pytest.mark.parametrize("point", plugins("scorer"))
def test_registered_scorers(point: Any) -> None:
    check_scorer(point.load()())


@pytest.mark.parametrize("point", plugins("picker"))
def test_registered_pickers(point: Any) -> None:
    check_picker(point.load())


@pytest.mark.parametrize("point", plugins("engine"))
def test_registered_engines(point: Any) -> None:
    check_engine(point.load()())


def test_a_third_party_engine_installed_from_its_own_wheel() -> None:
    found = {point.name: point for point in entry_points(group="infctl.engine")}
    if "sample" not in found:
        pytest.skip("the sample engine is not installed: pip install tests/sample_engine")
    engine = found["sample"].load()()
    check_engine(engine)
    unit = UnitSpec(unit="u", model="m", model_path="/m.gguf", host="127.0.0.1", port=8080)
    assert engine.commands(unit)[0].argv[:4] == ("llama-server", "--metrics", "--model", "/m.gguf")
    text = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
    assert engine.loads(text) == {0: Load(running=2.0, waiting=1.0)}


class Leaky(Vllm, frozen=True):
    """Puts a secret on the command line."""

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        return tuple(RankCommand((*c.argv, *c.env.values()), c.env) for c in super().commands(unit))


class Forgetful(Vllm, frozen=True):
    """Drops the unit's environment."""

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        return tuple(RankCommand(c.argv, {}) for c in super().commands(unit))


class Portless(Vllm, frozen=True):
    """Does not say which port to listen on."""

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        return (RankCommand(("serve", unit.model), unit.env),)


class Fragile(Vllm, frozen=True):
    """Fails on an odd text."""

    def loads(self, metrics: str) -> dict[int, Load]:
        return {0: Load(running=float("nan"))}


class Greedy(Vllm, frozen=True):
    """Strips the model from requests."""

    owned_fields: ClassVar[frozenset[str]] = frozenset({"model"})


class Silent(Vllm, frozen=True):
    """Never misses a series."""

    def missing(self, metrics: str) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Leaky(), "everybody can read"),
        (Forgetful(), "env does not reach"),
        (Portless(), "not told its port"),
        (Fragile(), "running is nan"),
        (Greedy(), "strip what clients need"),
        (Silent(), "must name the series"),
    ],
)
def test_engines_that_are_wrong(engine: Vllm, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_engine(engine)


class BadScorer:
    """Scores in many wrong ways."""

    unit: ClassVar[str] = "share"

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.calls = 0

    def score(self, request: Request, fleet: Fleet, cached: Column) -> Column:
        self.calls += 1
        column = np.zeros(len(fleet))
        if self.fault == "nan":
            column[0] = np.nan
        elif self.fault == "short":
            return column[:-1]
        elif self.fault == "large":
            column[0] = 2.0
        elif self.fault == "moody":
            column[0] = 1.0 / self.calls
        elif self.fault == "writes":
            fleet.cells["running"][0] += 1
        elif self.fault == "ints":
            return column.astype(np.int64)  # type: ignore[return-value]
        return column


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "every slot needs a number"),
        ("short", "for 1 slots"),
        ("large", "at most 1"),
        ("moody", "two equal calls"),
        ("writes", "changed the fleet's running"),
        ("ints", "float64"),
    ],
)
def test_scorers_that_are_wrong(fault: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_scorer(BadScorer(fault))  # type: ignore[arg-type]


class SameKey:
    """One key for requests whose masks differ."""

    def key(self, request: Request) -> str:
        return "all"

    def allow(self, request: Request, fleet: Fleet) -> Mask:
        return fleet.mask(request.model == "m0" for _ in fleet.slots)


def test_a_filter_whose_key_is_too_coarse() -> None:
    with pytest.raises(AssertionError, match="two masks for one key"):
        check_filter(SameKey())


class FirstSlot:
    """Takes slot 0, allowed or not."""

    uses_scores: ClassVar[bool] = True

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        return 0


class OwnDice:
    """Draws from a generator of its own."""

    uses_scores: ClassVar[bool] = True
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        OwnDice.made += 1
        self._dice = np.random.default_rng(OwnDice.made)

    def pick(self, scores: Column, fleet: Fleet, random: Random) -> int:
        return int(self._dice.choice(np.flatnonzero(scores > -np.inf)))


def test_pickers_that_are_wrong() -> None:
    with pytest.raises(AssertionError, match="not allowed"):
        check_picker(FirstSlot)
    with pytest.raises(AssertionError, match="same seed"):
        check_picker(OwnDice)


def test_the_checks_are_where_plugin_authors_look() -> None:
    import infctl.testing

    assert infctl.testing.check_engine is check_engine
    assert infctl.testing.check_scorer is check_scorer
    with pytest.raises(AttributeError, match="no attribute 'check_nothing'"):
        infctl.testing.check_nothing  # noqa: B018
