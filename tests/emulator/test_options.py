"""The command line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from infctl.emulator.options import parse_options
from infctl.errors import InfctlError, InputError, UsageError

from .conftest import FAST

TIMING = msgspec.json.encode(FAST).decode()
BASE = ["--model", "m", "--timing-json", TIMING]


def test_defaults() -> None:
    options = parse_options(BASE)
    assert options.timing == FAST
    assert (options.dialect, options.speed, options.bytes_per_token) == ("vllm", 1.0, 4)
    assert options.replica.kv_capacity_tokens == FAST.kv_capacity_tokens
    assert not options.replica.record_events


def test_everything() -> None:
    options = parse_options(
        [
            *BASE,
            *("--alias", "a", "--alias", "b", "--port", "9", "--speed", "12", "--seed", "3"),
            *("--dialect", "sglang", "--kv-capacity-tokens", "4096", "--block-size", "8"),
            *("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--context-tokens", "100"),
            *("--no-enable-prefix-caching", "--stream-interval", "3", "--startup-s", "1.5"),
            *("--event-port", "7", "--fault", '{"mode": "slow", "factor": 3}'),
        ]
    )
    assert options.aliases == ("a", "b")
    assert (options.port, options.speed, options.dialect) == (9, 12.0, "sglang")
    assert (options.replica.max_num_seqs, options.replica.block_size) == (4, 8)
    assert options.replica.record_events
    assert not options.replica.prefix_caching
    assert options.fault is not None
    assert options.fault.factor == 3


def test_timing_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "timing.json"
    file.write_text(TIMING)
    assert parse_options(["--model", "m", "--timing-json", str(file)]).timing == FAST


def test_timing_by_name_and_from_yaml(tmp_path: Path) -> None:
    shipped = parse_options(["--model", "m", "--timing", "qwen3-8b-bf16-1xh100"]).timing
    assert shipped.kv_capacity_tokens > 0
    file = tmp_path / "timing.yaml"
    file.write_text(TIMING)  # JSON is YAML
    assert parse_options(["--model", "m", "--timing", str(file)]).timing == FAST
    file = file.rename(tmp_path / "timing.json")
    assert parse_options(["--model", "m", "--timing", str(file)]).timing == FAST


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        ([], UsageError, "--model"),
        (["--model", "m"], UsageError, "--timing-json"),
        ([*BASE, "--timing", "qwen3-8b-bf16-1xh100"], UsageError, "not allowed with"),
        (["--model", "m", "--timing", "qwen3-8b-bf16-1xh10"], InputError, "Did you mean"),
        (["--model", "m", "--timing", "/no/such.json"], InputError, "cannot be read"),
        ([*BASE, "--port", "70000"], UsageError, "--port must be between"),
        ([*BASE, "--speed", "0"], UsageError, "--speed must be between"),
        ([*BASE, "--nonsense"], UsageError, "--nonsense"),
        ([*BASE, "--dialect", "tgi"], UsageError, "tgi"),
        ([*BASE, "--max-num-batched-tokens", "8"], UsageError, "below --max-num-seqs"),
        ([*BASE, "--kv-capacity-tokens", "8"], UsageError, "not even one block"),
        ([*BASE, "--fault", "{}"], InputError, "not a fault"),
        (["--model", "m", "--timing-json", "/no/such"], InputError, "cannot be read"),
        (["--model", "m", "--timing-json", "{}"], InputError, "not a timing model"),
    ],
)
def test_what_is_refused(words: list[str], kind: type[InfctlError], says: str) -> None:
    with pytest.raises(kind) as caught:
        parse_options(words)
    assert says in str(caught.value)
