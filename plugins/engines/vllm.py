"""vLLM: `vllm serve`, its OpenAI API and its metrics (0.6 to 0.32)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from infctl.plugin import (
    Capabilities,
    InputError,
    Load,
    Probe,
    RankCommand,
    Series,
    UnitSpec,
    absent,
    by_rank,
    flags,
    label,
    scan,
)

_SERIES: Series = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "generation_tokens_total": ("vllm:generation_tokens_total",),
    "cached_tokens_total": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
    ),
    "preemptions_total": ("vllm:num_preemptions_total",),
}
_CONFIG = "vllm:cache_config_info"
_OWNED = {
    "model": "models[].path",
    "served_model_name": "models[].name and models[].aliases",
    "host": "the cluster's host",
    "port": "the port infctl chooses",
    "tensor_parallel_size": "unit.parallel.tp",
    "pipeline_parallel_size": "unit.parallel.pp",
    "data_parallel_size": "unit.parallel.dp",
    "enable_expert_parallel": "unit.parallel.ep",
    "max_model_len": "models[].context_tokens",
    "nnodes": "unit.nodes",
    "node_rank": "unit.nodes",
    "master_addr": "unit.nodes",
    "master_port": "unit.nodes",
    "headless": "unit.nodes",
    "data_parallel_size_local": "unit.parallel.dp and unit.nodes",
    "data_parallel_start_rank": "unit.parallel.dp and unit.nodes",
    "data_parallel_address": "unit.parallel.dp and unit.nodes",
    "data_parallel_rpc_port": "unit.parallel.dp and unit.nodes",
}
_BARE = ("disable_", "headless")
_PHASES = (
    ("Starting to load model", "loading weights"),
    ("Loading safetensors", "loading weights"),
    ("Loading weights took", "allocating KV cache"),
    ("Dynamo bytecode transform", "compiling"),
    ("Compiling a graph", "compiling"),
    ("Capturing CUDA graph", "capturing graphs"),
    ("KV cache size", "warming up"),
    ("init engine", "starting server"),
    ("Starting vLLM server", "starting server"),
)


class Vllm(msgspec.Struct, frozen=True):
    """vLLM's OpenAI server, one process a node; data-parallel ranks live within their node."""

    name: ClassVar[str] = "vllm"
    capabilities: ClassVar[Capabilities] = Capabilities(
        continues=frozenset({b"/v1/completions", b"/v1/chat/completions"}),
        stream_usage=True,
        stream_token_ids=frozenset({b"/v1/completions", b"/v1/chat/completions"}),
    )
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    python_env: ClassVar[str | None] = "INFCTL_VLLM_PYTHON"
    owned_fields: ClassVar[frozenset[str]] = frozenset({"kv_transfer_params", "ec_transfer_params"})

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        """`vllm serve` by module, which needs no script beside the interpreter."""
        shared = self._shared(unit)
        environment = self._environment(unit)
        return tuple(
            RankCommand((*shared, *self._node(unit, rank)), environment)
            for rank in range(unit.nodes)
        )

    def _shared(self, unit: UnitSpec) -> tuple[str, ...]:
        p = unit.parallel
        words = [unit.python, "-m", "vllm.entrypoints.cli.main", "serve", unit.model_path]
        words += ["--served-model-name", unit.model, *unit.aliases]
        words += ["--host", unit.host, "--port", str(unit.port)]
        for flag, size in (("-tp", p.tp), ("-pp", p.pp), ("-dp", p.dp)):
            if size > 1:
                words += [flag, str(size)]
        if p.ep > 1:
            words.append("--enable-expert-parallel")
        if unit.context_tokens is not None:
            words += ["--max-model-len", str(unit.context_tokens)]
        args = {"enable_prompt_tokens_details": True} | unit.args
        if unit.event_port and "kv_events_config" not in args:
            args["kv_events_config"] = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{unit.event_port}",
            }
        return (*words, *flags(args, owned=_OWNED, negated=lambda n: not n.startswith(_BARE)))

    def _node(self, unit: UnitSpec, rank: int) -> tuple[str, ...]:
        """What makes this node's command differ from the others'."""
        if unit.nodes == 1:
            return ()
        headless = ("--headless",) if rank else ()
        dp = unit.parallel.dp
        if dp == 1:
            return (
                *("--nnodes", str(unit.nodes), "--node-rank", str(rank)),
                *("--master-addr", unit.master_address, "--master-port", str(unit.master_port)),
                *headless,
            )
        local, rest = divmod(dp, unit.nodes)
        if rest or not local:
            raise InputError(
                f"vLLM keeps a data-parallel rank within a node: {dp} ranks do not divide over "
                f"{unit.nodes} nodes",
                where="unit.parallel.dp",
                hint="make dp a multiple of unit.nodes, or 1",
            )
        return (
            *("--data-parallel-size-local", str(local)),
            *("--data-parallel-start-rank", str(rank * local)),
            *("--data-parallel-address", unit.master_address),
            *("--data-parallel-rpc-port", str(unit.master_port)),
            *headless,
        )

    def _environment(self, unit: UnitSpec) -> dict[str, str]:
        defaults = {"VLLM_NO_USAGE_STATS": "1"}
        if not unit.gpus_per_node:
            # Without this every instance on a CPU host pins itself to core 0.
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        return defaults | unit.env

    def phase(self, log_line: str) -> str | None:
        """Start-up phases as the engine core logs them."""
        return next((phase for text, phase in _PHASES if text in log_line), None)

    def loads(self, metrics: str) -> dict[int, Load]:
        """One Load per `engine` label."""
        capacities = self._capacities(metrics)
        return {
            rank: Load(kv_capacity_tokens=capacities.get(rank), **values)
            for rank, values in by_rank(metrics, _SERIES, "engine").items()
        }

    def _capacities(self, metrics: str) -> dict[int, int]:
        found = {}
        for sample in scan(metrics, (_CONFIG,)):
            try:
                rank = int(label(sample.labels, "engine") or 0)
                blocks = int(label(sample.labels, "num_gpu_blocks") or "")
                found[rank] = blocks * int(label(sample.labels, "block_size") or "")
            except ValueError:
                continue
        return found

    def missing(self, metrics: str) -> tuple[str, ...]:
        """vLLM writes every series from its start on."""
        return absent(metrics, _SERIES)

    def recognises(self, probe: Probe) -> bool:
        """By who owns the models, or by the metrics' prefix."""
        return b'"owned_by":"vllm"' in probe.models or "\nvllm:" in probe.metrics
