"""The SGLang codec: command lines of every kind of unit, and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infctl.plugin import InputError, Load, Parallel, Probe, UnitSpec
from infctl.testing.conformance import check_engine
from infctl_plugins.engines.sglang import Sglang

GOLDENS = Path(__file__).parents[2] / "goldens/metrics"
SGLANG = Sglang()


def unit(**changes: Any) -> UnitSpec:
    """A unit on one node with eight GPUs."""
    fields: dict[str, Any] = {
        "unit": "u0",
        "model": "m",
        "model_path": "/models/m",
        "host": "127.0.0.1",
        "port": 8101,
        "python": "py",
        "gpus_per_node": 8,
    }
    return UnitSpec(**(fields | changes))


def argv(rank: int = 0, **changes: Any) -> str:
    """The command line of a rank as one string."""
    return " ".join(SGLANG.commands(unit(**changes))[rank].argv)


def test_conformance() -> None:
    check_engine(SGLANG)


def test_the_plain_command() -> None:
    assert argv(context_tokens=1024) == (
        "py -m sglang.launch_server --model-path /models/m --served-model-name m "
        "--host 127.0.0.1 --port 8101 --context-length 1024 --enable-metrics --enable-cache-report"
    )


def test_on_cpu() -> None:
    command = SGLANG.commands(unit(gpus_per_node=0, args={"dtype": "float32"}))[0]
    assert command.argv[-4:] == ("--dtype", "float32", "--device", "cpu")
    assert command.env == {"SGLANG_USE_CPU_ENGINE": "1"}


def test_bare_flags_have_no_negation() -> None:
    line = argv(args={"enable_metrics": False, "disable_radix_cache": True})
    assert line.endswith("--port 8101 --enable-cache-report --disable-radix-cache")


def test_replicas_of_a_dense_model() -> None:
    assert " --tp-size 4 --dp-size 2 " in argv(parallel=Parallel(tp=4, dp=2))


def test_experts_over_nodes() -> None:
    spec = {
        "nodes": 2,
        "parallel": Parallel(tp=2, dp=8, ep=16),
        "master_address": "10.0.0.1",
        "master_port": 5000,
    }
    line = argv(1, **spec)
    assert " --tp-size 16 --attn-dp-size 8 --ep-size 16 " in line
    assert line.endswith("--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5000")


def test_kv_events() -> None:
    line = argv(event_port=5557)
    assert line.endswith('--kv-events-config {"publisher":"zmq","endpoint":"tcp://*:5557"}')


def test_what_the_profile_says_elsewhere_is_refused() -> None:
    with pytest.raises(InputError, match="itself"):
        SGLANG.commands(unit(args={"tp_size": 2}))
    with pytest.raises(InputError, match="process list"):
        SGLANG.commands(unit(args={"admin_api_key": "x"}))


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[2026-11-30 16:42:09] Load weight begin. avail mem=21.73 GB", "loading weights"),
        ("[2026-11-30 16:42:09] Load weight end. elapsed=0.07 s", "allocating KV cache"),
        ("[2026-11-30 16:42:09] KV Cache is allocated. dtype: torch.float32", "warming up"),
        ("[2026-11-30 16:42:09] INFO:     Application startup complete.", "starting server"),
        ("[2026-11-30 16:42:09] Cannot detect CUDA architecture.", None),
    ],
)
def test_phases(line: str, phase: str | None) -> None:
    assert SGLANG.phase(line) == phase


def test_metrics_of_0_5_23() -> None:
    text = (GOLDENS / "sglang-0.5.23.txt").read_text()
    assert SGLANG.loads(text) == {
        0: Load(
            running=0.0,
            waiting=0.0,
            kv_usage=0.0,
            kv_capacity_tokens=4096,
            prompt_tokens_total=50.0,
            generation_tokens_total=9.0,
            cached_tokens_total=20.0,
        )
    }
    assert SGLANG.missing(text) == ()


def test_metrics_of_data_parallel_ranks() -> None:
    text = (
        'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 4.0\n'
        'sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 5.0\n'
        'sglang:token_usage{dp_rank="1",tp_rank="0"} NaN\n'
    )
    assert SGLANG.loads(text) == {0: Load(running=4.0), 1: Load(running=5.0)}
    assert SGLANG.missing(text) == ("sglang:num_queue_reqs", "sglang:token_usage")


def test_recognition() -> None:
    assert SGLANG.recognises(Probe(models=b'{"data":[{"id":"x","owned_by":"sglang"}]}'))
    assert SGLANG.recognises(Probe(metrics=(GOLDENS / "sglang-0.5.23.txt").read_text()))
    assert not SGLANG.recognises(Probe(metrics=(GOLDENS / "vllm-0.32.txt").read_text()))


def test_fields_that_only_a_router_may_set() -> None:
    assert {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"} <= SGLANG.owned_fields
