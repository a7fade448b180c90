"""The vLLM codec: command lines of every kind of unit, and metrics of several releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infctl.plugin import InputError, Load, Parallel, Probe, UnitSpec
from infctl.testing.conformance import check_engine
from infctl_plugins.engines.vllm import Vllm

GOLDENS = Path(__file__).parents[2] / "goldens/metrics"
VLLM = Vllm()


def unit(**changes: Any) -> UnitSpec:
    """A unit on one CPU node."""
    fields: dict[str, Any] = {
        "unit": "u0",
        "model": "tiny",
        "model_path": "/models/tiny",
        "host": "127.0.0.1",
        "port": 8101,
        "python": "/opt/vllm/bin/python",
    }
    return UnitSpec(**(fields | changes))


def argv(rank: int = 0, **changes: Any) -> str:
    """The command line of a rank as one string."""
    return " ".join(VLLM.commands(unit(**changes))[rank].argv)


def test_conformance() -> None:
    check_engine(VLLM)


def test_the_plain_command() -> None:
    assert argv() == (
        "/opt/vllm/bin/python -m vllm.entrypoints.cli.main serve /models/tiny "
        "--served-model-name tiny --host 127.0.0.1 --port 8101 --enable-prompt-tokens-details"
    )


def test_names_context_and_parallelism() -> None:
    line = argv(
        aliases=("a", "b"),
        context_tokens=2048,
        gpus_per_node=8,
        parallel=Parallel(tp=4, pp=2, ep=8),
    )
    assert "--served-model-name tiny a b " in line
    assert " -tp 4 -pp 2 --enable-expert-parallel --max-model-len 2048 " in line


def test_arguments_become_flags() -> None:
    line = argv(
        args={
            "max_num_seqs": 256,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "disable_log_stats": False,
            "quantization": None,
            "gpu_memory_utilization": 0.92,
            "allowed_origins": ["*", "x"],
            "speculative_config": {"method": "ngram"},
            "enable_prompt_tokens_details": False,
        }
    )
    assert line.endswith(
        "--no-enable-prompt-tokens-details --max-num-seqs 256 --enforce-eager "
        "--no-enable-prefix-caching --gpu-memory-utilization 0.92 --allowed-origins * x "
        '--speculative-config {"method":"ngram"}'
    )


def test_a_pipeline_over_nodes() -> None:
    spec = {
        "nodes": 2,
        "gpus_per_node": 8,
        "parallel": Parallel(tp=8, pp=2),
        "master_address": "10.0.0.1",
        "master_port": 29500,
    }
    group = "--nnodes 2 --node-rank {} --master-addr 10.0.0.1 --master-port 29500"
    assert argv(0, **spec).endswith(group.format(0))
    assert argv(1, **spec).endswith(group.format(1) + " --headless")


def test_data_parallel_ranks_over_nodes() -> None:
    spec = {
        "nodes": 2,
        "gpus_per_node": 8,
        "parallel": Parallel(tp=2, dp=8, ep=16),
        "master_address": "10.0.0.1",
        "master_port": 29500,
    }
    first, second = argv(0, **spec), argv(1, **spec)
    assert " -dp 8 " in first
    local = "--data-parallel-size-local 4 --data-parallel-start-rank {}"
    rest = " --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 29500"
    assert first.endswith(local.format(0) + rest)
    assert second.endswith(local.format(4) + rest + " --headless")


def test_a_data_parallel_rank_stays_within_its_node() -> None:
    with pytest.raises(InputError, match="3 ranks do not divide over 2 nodes"):
        VLLM.commands(unit(nodes=2, parallel=Parallel(dp=3)))


def test_kv_events() -> None:
    words = VLLM.commands(unit(event_port=5557))[0].argv
    config = json.loads(words[words.index("--kv-events-config") + 1])
    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
    }


def test_environment() -> None:
    env = VLLM.commands(unit(env={"HF_TOKEN": "s", "VLLM_NO_USAGE_STATS": "0"}))[0].env
    assert env == {
        "HF_TOKEN": "s",
        "VLLM_NO_USAGE_STATS": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    assert "VLLM_CPU_OMP_THREADS_BIND" not in VLLM.commands(unit(gpus_per_node=1))[0].env


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        ({"port": 1}, "infctl sets port itself", "port"),
        ({"tensor_parallel_size": 2}, "itself", "unit.parallel.tp"),
        ({"api_key": "secret"}, "process list", "environment"),
        ({"--max-num-seqs": 2}, "not an argument name", "snake_case"),
    ],
)
def test_arguments_that_are_refused(args: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        VLLM.commands(unit(args=args))
    assert hint in str(caught.value.hint)
    assert str(caught.value.where).startswith("engine.args.")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("INFO [cpu_model_runner.py:68] Starting to load model /tmp/tiny...", "loading weights"),
        ("INFO [default_loader.py:501] Loading weights took 0.01 seconds", "allocating KV cache"),
        ("INFO [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens", "warming up"),
        ("Capturing CUDA graphs (decode, FULL): 12%|", "capturing graphs"),
        ("INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:31100", "starting server"),
        ("WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs", None),
        ("INFO [launcher.py:195] Route: /load, Methods: GET", None),
    ],
)
def test_phases(line: str, phase: str | None) -> None:
    assert VLLM.phase(line) == phase


def test_metrics_of_0_32() -> None:
    text = (GOLDENS / "vllm-0.32.txt").read_text()
    assert VLLM.loads(text) == {
        0: Load(
            running=0.0,
            waiting=0.0,
            kv_usage=0.0,
            kv_capacity_tokens=1_048_576,
            prompt_tokens_total=1631.0,
            generation_tokens_total=150.0,
            cached_tokens_total=512.0,
            preemptions_total=0.0,
        )
    }
    assert VLLM.missing(text) == ()


def test_metrics_under_their_old_names() -> None:
    text = (GOLDENS / "vllm-old-names.txt").read_text()
    assert VLLM.loads(text) == {
        0: Load(
            running=3.0,
            waiting=2.0,
            kv_usage=0.25,
            prompt_tokens_total=5000.0,
            generation_tokens_total=700.0,
            cached_tokens_total=1600.0,
            preemptions_total=1.0,
        )
    }
    assert VLLM.missing(text) == ()


def test_metrics_of_data_parallel_ranks() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 2.0\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5\n'
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="10"} 1.0\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1.0\n'
    )
    assert VLLM.loads(text) == {
        0: Load(running=1.0),
        1: Load(running=2.0, kv_usage=0.5, kv_capacity_tokens=160),
    }


def test_a_renamed_series_is_missed_and_never_zero() -> None:
    text = (GOLDENS / "vllm-0.32.txt").read_text()
    text = text.replace("vllm:kv_cache_usage_perc", "vllm:kv_usage")
    assert VLLM.missing(text) == ("vllm:kv_cache_usage_perc",)
    assert VLLM.loads(text)[0].kv_usage is None


def test_recognition() -> None:
    assert VLLM.recognises(Probe(models=b'{"data":[{"id":"x","owned_by":"vllm"}]}'))
    assert VLLM.recognises(Probe(metrics=(GOLDENS / "vllm-0.32.txt").read_text()))
    assert not VLLM.recognises(Probe(metrics=(GOLDENS / "sglang-0.5.23.txt").read_text()))
