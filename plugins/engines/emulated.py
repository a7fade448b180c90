"""An emulated engine: the real API and metrics, calibrated timing, no GPU and no weights."""

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
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens_total": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "cached_tokens_total": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "preemptions_total": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
}
_CONFIG = "vllm:cache_config_info"
_TOTAL = "sglang:max_total_num_tokens"
_OWNED = {
    "model": "models[].name",
    "alias": "models[].aliases",
    "host": "the cluster's host",
    "port": "the port infctl chooses",
    "timing_json": "models[].timing",
    "speed": "--speed",
    "dialect": "engine.dialect",
    "context_tokens": "models[].context_tokens",
    "event_port": "the port infctl chooses",
    "seed": "--seed",
}
_KNOWN = frozenset(
    {
        *("kv_capacity_tokens", "block_size", "max_num_seqs", "max_num_batched_tokens"),
        *("enable_prefix_caching", "bytes_per_token", "stream_interval", "startup_s", "fault"),
        "event_replay_port",
    }
)


class Emulated(msgspec.Struct, frozen=True):
    """`python -m infctl.emulator`, one process a unit however many nodes it stands for."""

    name: ClassVar[str] = "emulated"
    capabilities: ClassVar[Capabilities] = Capabilities(
        continues=frozenset({b"/v1/completions", b"/v1/chat/completions"}),
        stream_usage=True,
        stream_token_ids=frozenset({b"/v1/completions"}),
    )
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    python_env: ClassVar[str | None] = None
    owned_fields: ClassVar[frozenset[str]] = frozenset()

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        """The emulator with the unit's timing model."""
        if unit.timing is None:
            raise InputError(
                f"model {unit.model!r} has no timing model to emulate",
                where="models[].timing",
                hint="name one, for example deepseek-v3-8xh200-tp8",
            )
        unknown = sorted(unit.args.keys() - _KNOWN)
        if unknown and unknown[0] not in _OWNED:
            raise InputError(
                f"an emulated engine has no argument {unknown[0]!r}",
                where=f"engine.args.{unknown[0]}",
                hint=f"it knows {', '.join(sorted(_KNOWN))}",
            )
        words = [unit.python, "-P", "-m", "infctl.emulator", "--model", unit.model]
        for alias in unit.aliases:
            words += ["--alias", alias]
        words += ["--host", unit.host, "--port", str(unit.port)]
        words += ["--timing-json", msgspec.json.encode(unit.timing).decode()]
        words += ["--speed", str(unit.speed), "--dialect", unit.dialect, "--seed", str(unit.seed)]
        if unit.context_tokens is not None:
            words += ["--context-tokens", str(unit.context_tokens)]
        if unit.event_port:
            words += ["--event-port", str(unit.event_port)]
        words += flags(unit.args, owned=_OWNED, negated=lambda _: True)
        return (RankCommand(tuple(words), dict(unit.env)),)

    def phase(self, log_line: str) -> str | None:
        """What the emulator logs on its way up."""
        if not log_line.startswith("emulating "):
            return None
        return "loading weights" if log_line.endswith("loading weights") else "starting server"

    def loads(self, metrics: str) -> dict[int, Load]:
        """Either dialect's series."""
        capacity = _capacity(metrics)
        rows = by_rank(metrics, _SERIES, "engine")
        return {rank: Load(kv_capacity_tokens=capacity, **row) for rank, row in rows.items()}

    def missing(self, metrics: str) -> tuple[str, ...]:
        """The emulator writes every series from its start on, in one dialect."""
        prefix = "sglang:" if "\nsglang:" in metrics else "vllm:"
        expected = {
            ours: tuple(name for name in names if name.startswith(prefix))
            for ours, names in _SERIES.items()
        }
        return absent(metrics, expected)

    def recognises(self, probe: Probe) -> bool:
        """Never: seen from outside it is the engine whose dialect it speaks."""
        return False


def _capacity(metrics: str) -> int | None:
    for sample in scan(metrics, (_CONFIG, _TOTAL)):
        if sample.name == _TOTAL:
            return int(sample.value)
        blocks = label(sample.labels, "num_gpu_blocks") or ""
        size = label(sample.labels, "block_size") or ""
        if blocks.isdigit() and size.isdigit():
            return int(blocks) * int(size)
    return None
