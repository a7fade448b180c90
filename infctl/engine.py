"""The Engine seam: a codec between infctl and one kind of inference engine.

An engine plugin is pure. It turns a unit into command lines, and the engine's texts into our
structs; it never opens a socket. Drivers do that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import msgspec

from infctl.timing import TimingModel

if TYPE_CHECKING:
    from infctl.core.fleet import Load


class Parallel(msgspec.Struct, frozen=True):
    """Tensor, pipeline, data and expert parallelism of one unit; ep 1 means off."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1


class UnitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine plugin needs to write a unit's command lines.

    `host` and `port` are where the unit's endpoint listens (rank 0); `master_port` is free for
    group formation when `nodes` > 1, `event_port` for KV events. `args` are the profile's engine
    arguments, keys in snake_case. `timing`, `speed` and `dialect` concern emulated engines only.
    """

    unit: str
    model: str
    model_path: str
    host: str
    port: int
    aliases: tuple[str, ...] = ()
    context_tokens: int | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    parallel: Parallel = Parallel()
    master_address: str = "127.0.0.1"
    master_port: int = 0
    event_port: int = 0
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    python: str = "python3"
    timing: TimingModel | None = None
    speed: float = 1.0
    seed: int = 0
    dialect: str = "vllm"


class RankCommand(msgspec.Struct, frozen=True):
    """One process of a unit: its argv and what is added to its environment."""

    argv: tuple[str, ...]
    env: dict[str, str]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What callers may rely on. Fields arrive with the features that read them.

    `continues`: API paths whose answers this engine can go on with (a prompt with what was said,
    or `continue_final_message`). `stream_usage`: streams understand `stream_options.include_usage`.
    `stream_token_ids`: paths whose streams understand `return_token_ids`.
    """

    metrics: bool = True
    cached_tokens: bool = True
    ignore_eos: bool = True
    continues: frozenset[bytes] = frozenset()
    stream_usage: bool = False
    stream_token_ids: frozenset[bytes] = frozenset()


class Probe(msgspec.Struct, frozen=True):
    """What an unknown endpoint said: bodies of /v1/models and /metrics, empty when absent."""

    models: bytes = b""
    metrics: str = ""


@runtime_checkable
class Engine(Protocol):
    """A kind of engine. All methods are pure and must not raise on an engine's odd texts."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    health_path: ClassVar[str]
    metrics_path: ClassVar[str | None]
    python_env: ClassVar[str | None]
    """Environment variable that names the engine's own Python, if it has one."""
    owned_fields: ClassVar[frozenset[str]]
    """Request body fields only the router may set; stripped from clients' requests."""

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        """One command per node of the unit, node rank 0 first.

        Raises InputError when `args` hold something this engine cannot be started with.
        """
        ...

    def phase(self, log_line: str) -> str | None:
        """The start-up phase a log line announces (`loading weights`, `warming up`), or None."""
        ...

    def loads(self, metrics: str) -> dict[int, Load]:
        """Load per data-parallel rank from the text of /metrics; absent series stay None."""
        ...

    def missing(self, metrics: str) -> tuple[str, ...]:
        """Names of expected series the text lacks: renames are the top cause of silent breakage."""
        ...

    def recognises(self, probe: Probe) -> bool:
        """Whether an endpoint that said this is an engine of this kind."""
        ...
