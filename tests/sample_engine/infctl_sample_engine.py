"""A third-party engine: llama.cpp's `llama-server`, known to infctl through this module alone."""

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
)

_SERIES: Series = {
    "running": ("llamacpp:requests_processing",),
    "waiting": ("llamacpp:requests_deferred",),
    "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
    "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
}
_OWNED = {
    "model": "models[].path",
    "alias": "models[].name",
    "host": "the cluster's host",
    "port": "the port infctl chooses",
    "ctx_size": "models[].context_tokens",
}


class Sample(msgspec.Struct, frozen=True):
    """`llama-server` on one node; `binary` is where it is."""

    binary: str = "llama-server"

    name: ClassVar[str] = "sample"
    capabilities: ClassVar[Capabilities] = Capabilities(cached_tokens=False)
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    python_env: ClassVar[str | None] = None
    owned_fields: ClassVar[frozenset[str]] = frozenset({"id_slot"})

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        """One process; several nodes are an InputError."""
        if unit.nodes > 1:
            raise InputError(
                "llama-server runs on one node", where="unit.nodes", hint="set unit.nodes to 1"
            )
        words = [self.binary, "--metrics", "--model", unit.model_path, "--alias", unit.model]
        words += ["--host", unit.host, "--port", str(unit.port)]
        if unit.context_tokens is not None:
            words += ["--ctx-size", str(unit.context_tokens)]
        return (RankCommand((*words, *flags(unit.args, owned=_OWNED)), dict(unit.env)),)

    def phase(self, log_line: str) -> str | None:
        """The one phase that takes time."""
        return "loading weights" if "load_model: loading model" in log_line else None

    def loads(self, metrics: str) -> dict[int, Load]:
        """It has no data-parallel ranks."""
        rows = by_rank(metrics, _SERIES, "rank")
        return {rank: Load(kv_capacity_tokens=None, **row) for rank, row in rows.items()}

    def missing(self, metrics: str) -> tuple[str, ...]:
        """Every series is there from the start on."""
        return absent(metrics, _SERIES)

    def recognises(self, probe: Probe) -> bool:
        """By the owner of its models."""
        return b'"owned_by":"llamacpp"' in probe.models
