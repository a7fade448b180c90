"""Any server with an OpenAI API of which nothing more is known."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from infctl.plugin import Capabilities, InputError, Load, Probe, RankCommand, UnitSpec


class OpenAI(msgspec.Struct, frozen=True):
    """Routed on what the router itself sees: requests in flight and prefixes."""

    name: ClassVar[str] = "openai"
    capabilities: ClassVar[Capabilities] = Capabilities(
        metrics=False,
        cached_tokens=False,
        ignore_eos=False,
        continues=frozenset({b"/v1/completions"}),
    )
    health_path: ClassVar[str] = "/v1/models"
    metrics_path: ClassVar[str | None] = None
    python_env: ClassVar[str | None] = None
    owned_fields: ClassVar[frozenset[str]] = frozenset()

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        """Always an InputError: there is no telling how to start such a server."""
        raise InputError(
            "infctl cannot start a generic OpenAI server",
            where="engine.type",
            hint="start it yourself and give the router --endpoint URL, or name the engine: "
            "vllm, sglang or emulated",
        )

    def phase(self, log_line: str) -> str | None:
        """Nothing is known of its log."""
        return None

    def loads(self, metrics: str) -> dict[int, Load]:
        """Nothing is known of its metrics."""
        return {}

    def missing(self, metrics: str) -> tuple[str, ...]:
        """No series is expected."""
        return ()

    def recognises(self, probe: Probe) -> bool:
        """Whatever lists models as OpenAI's API does."""
        try:
            answer = msgspec.json.decode(probe.models, type=_Models)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return bool(answer.data)


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]
