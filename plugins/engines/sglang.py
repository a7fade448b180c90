"""SGLang: `sglang.launch_server`, its OpenAI API and its metrics (0.5)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from infctl.plugin import (
    Capabilities,
    Load,
    Probe,
    RankCommand,
    Series,
    UnitSpec,
    absent,
    by_rank,
    flags,
)

_GAUGES: Series = {
    "running": ("sglang:num_running_reqs",),
    "waiting": ("sglang:num_queue_reqs",),
    "kv_usage": ("sglang:token_usage",),
}
_SERIES: Series = _GAUGES | {
    "kv_capacity_tokens": ("sglang:max_total_num_tokens",),
    "prompt_tokens_total": ("sglang:prompt_tokens_total",),
    "generation_tokens_total": ("sglang:generation_tokens_total",),
    "cached_tokens_total": ("sglang:cached_tokens_total",),
    "preemptions_total": ("sglang:num_retracted_requests_total",),
}
_OWNED = {
    "model_path": "models[].path",
    "served_model_name": "models[].name",
    "host": "the cluster's host",
    "port": "the port infctl chooses",
    "tp_size": "unit.parallel.tp",
    "pp_size": "unit.parallel.pp",
    "dp_size": "unit.parallel.dp",
    "attn_dp_size": "unit.parallel.dp",
    "enable_dp_attention": "unit.parallel.ep",
    "ep_size": "unit.parallel.ep",
    "tensor_parallel_size": "unit.parallel.tp",
    "data_parallel_size": "unit.parallel.dp",
    "context_length": "models[].context_tokens",
    "nnodes": "unit.nodes",
    "node_rank": "unit.nodes",
    "dist_init_addr": "unit.nodes",
}
_PHASES = (
    ("Load weight begin", "loading weights"),
    ("loading shards", "loading weights"),
    ("Load weight end", "allocating KV cache"),
    ("KV Cache is allocated", "warming up"),
    ("Capture cuda graph begin", "capturing graphs"),
    ("max_total_num_tokens=", "starting server"),
    ("Application startup complete", "starting server"),
)


class Sglang(msgspec.Struct, frozen=True):
    """SGLang's OpenAI server, one process a node."""

    name: ClassVar[str] = "sglang"
    capabilities: ClassVar[Capabilities] = Capabilities(
        continues=frozenset({b"/v1/completions", b"/v1/chat/completions"}),
        stream_usage=True,
        # Its chat streams refuse `return_token_ids` with a 400.
        stream_token_ids=frozenset({b"/v1/completions"}),
    )
    # /health generates a token and takes a second; this one answers at once and only when ready.
    health_path: ClassVar[str] = "/model_info"
    metrics_path: ClassVar[str | None] = "/metrics"
    python_env: ClassVar[str | None] = "INFCTL_SGLANG_PYTHON"
    owned_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"),
            *("routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"),
        }
    )

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        """`python -m sglang.launch_server` on every node."""
        shared = self._shared(unit)
        environment = self._environment(unit)
        return tuple(
            RankCommand((*shared, *self._node(unit, rank)), environment)
            for rank in range(unit.nodes)
        )

    def _shared(self, unit: UnitSpec) -> tuple[str, ...]:
        p = unit.parallel
        words = [unit.python, "-m", "sglang.launch_server", "--model-path", unit.model_path]
        words += ["--served-model-name", unit.model]
        words += ["--host", unit.host, "--port", str(unit.port)]
        # With data-parallel attention, tp counts all GPUs of a stage. Mixtures of experts want it,
        # and it is the only data parallelism that spans nodes.
        attention = p.dp > 1 and (p.ep > 1 or unit.nodes > 1)
        tp, dp_flag = (p.tp * p.dp, "attn-dp") if attention else (p.tp, "dp")
        for flag, size in (("tp", tp), ("pp", p.pp), (dp_flag, p.dp), ("ep", p.ep)):
            if size > 1:
                words += [f"--{flag}-size", str(size)]
        if unit.context_tokens is not None:
            words += ["--context-length", str(unit.context_tokens)]
        args = {"enable_metrics": True, "enable_cache_report": True} | unit.args
        if not unit.gpus_per_node:
            args.setdefault("device", "cpu")
        if unit.event_port and "kv_events_config" not in args:
            args["kv_events_config"] = {
                "publisher": "zmq",
                "endpoint": f"tcp://*:{unit.event_port}",
            }
        return (*words, *flags(args, owned=_OWNED))

    def _node(self, unit: UnitSpec, rank: int) -> tuple[str, ...]:
        if unit.nodes == 1:
            return ()
        address = f"{unit.master_address}:{unit.master_port}"
        return (
            *("--nnodes", str(unit.nodes), "--node-rank", str(rank)),
            *("--dist-init-addr", address),
        )

    def _environment(self, unit: UnitSpec) -> dict[str, str]:
        defaults = {} if unit.gpus_per_node else {"SGLANG_USE_CPU_ENGINE": "1"}
        return defaults | unit.env

    def phase(self, log_line: str) -> str | None:
        """Start-up phases as the scheduler logs them."""
        return next((phase for text, phase in _PHASES if text in log_line), None)

    def loads(self, metrics: str) -> dict[int, Load]:
        """One Load per `dp_rank` label."""
        return {rank: _load(row) for rank, row in by_rank(metrics, _SERIES, "dp_rank").items()}

    def missing(self, metrics: str) -> tuple[str, ...]:
        """Only gauges are certain: SGLang writes a counter once it has counted something."""
        return absent(metrics, _GAUGES)

    def recognises(self, probe: Probe) -> bool:
        """By who owns the models, or by the metrics' prefix."""
        return b'"owned_by":"sglang"' in probe.models or "\nsglang:" in probe.metrics


def _load(row: dict[str, float]) -> Load:
    capacity = row.pop("kv_capacity_tokens", None)
    return Load(kv_capacity_tokens=None if capacity is None else int(capacity), **row)
