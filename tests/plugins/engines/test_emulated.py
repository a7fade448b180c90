"""The emulated engine's codec, held against the emulator's own command line and metrics."""

from __future__ import annotations

from typing import Any

import pytest

from infctl.emulator.metrics import Metrics, Snapshot
from infctl.emulator.options import parse_options
from infctl.plugin import InputError, Load, TimingModel, UnitSpec
from infctl.replica import ReplicaLoad
from infctl.testing.conformance import check_engine
from infctl.timing import Decode, Prefill
from infctl_plugins.engines.emulated import Emulated

TIMING = TimingModel(
    prefill=Prefill(29.0, 0.03, 1e-6),
    decode=Decode(5.3, 2.09, 0.1, 1.1e-5),
    kv_capacity_tokens=555_000,
    source="made up",
)
EMULATED = Emulated()


def unit(**changes: Any) -> UnitSpec:
    """A unit as the demo profile has it."""
    fields: dict[str, Any] = {
        "unit": "u0",
        "model": "demo",
        "model_path": "demo",
        "host": "127.0.0.1",
        "port": 8101,
        "timing": TIMING,
        "context_tokens": 262_144,
        "speed": 12.0,
        "seed": 5,
        "dialect": "sglang",
        "aliases": ("d",),
        "event_port": 5557,
    }
    return UnitSpec(**(fields | changes))


def test_conformance() -> None:
    check_engine(EMULATED)


def test_the_emulator_understands_the_command() -> None:
    args = {"kv_capacity_tokens": 1_536_000, "block_size": 512, "enable_prefix_caching": False}
    (command,) = EMULATED.commands(unit(args=args, nodes=2, env={"A": "b"}))
    assert command.env == {"A": "b"}
    assert command.argv[:4] == ("python3", "-P", "-m", "infctl.emulator")
    options = parse_options(command.argv[4:])
    assert options.timing == TIMING
    assert (options.model, options.aliases, options.dialect) == ("demo", ("d",), "sglang")
    assert (options.port, options.speed, options.seed) == (8101, 12.0, 5)
    assert (options.context_tokens, options.event_port) == (262_144, 5557)
    assert options.replica.kv_capacity_tokens == 1_536_000
    assert options.replica.block_size == 512
    assert options.replica.record_events
    assert not options.replica.prefix_caching


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timing": None}, "no timing model"),
        ({"args": {"gpu_memory_utilization": 0.9}}, "no argument 'gpu_memory_utilization'"),
        ({"args": {"speed": 3}}, "infctl sets speed itself"),
    ],
)
def test_units_that_cannot_be_emulated(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        EMULATED.commands(unit(**changes))
    assert caught.value.hint


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_the_emulators_metrics_are_understood(dialect: str) -> None:
    metrics = Metrics(dialect, "demo", 512, 3000)
    state = ReplicaLoad(3, 2, 0.25, 5000, 700, 1600, 1)
    text = metrics.render(Snapshot(state, False, 0, 12.5)).decode()
    assert EMULATED.missing(text) == ()
    assert EMULATED.loads(text) == {
        0: Load(
            running=3.0,
            waiting=2.0,
            kv_usage=0.25,
            kv_capacity_tokens=1_536_000,
            prompt_tokens_total=5000.0,
            generation_tokens_total=700.0,
            cached_tokens_total=1600.0,
            preemptions_total=1.0,
        )
    }


def test_phases() -> None:
    assert EMULATED.phase("emulating demo: loading weights") == "loading weights"
    assert EMULATED.phase("emulating demo: ready on http://127.0.0.1:1") == "starting server"
    assert EMULATED.phase("loading weights") is None
