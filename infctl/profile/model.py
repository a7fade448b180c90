"""The profile's shape. Frozen and strict; fields arrive with the features that read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\w./:@+-]+$")]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0, le=100_000)]


class Part(BaseModel):
    """Every part of a profile is frozen, strict and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Metadata(Part):
    """What the profile is called; names its state folder."""

    name: Name
    description: str = ""


class Model(Part):
    """A model the fleet serves. `path` defaults to the name; `timing` names a timing model. With a
    `tokenizer` (a folder with tokenizer.json, or that file) the router counts prompt tokens exactly
    and knows prefixes by them; needs the extra `tokenizer`."""

    name: ModelName
    path: str | None = None
    aliases: list[ModelName] = []
    tokenizer: str | None = None
    context_tokens: Positive | None = None
    timing: str | None = None


class EngineConfig(Part):
    """The engine kind (a plugin), its version, arguments and environment.

    `args` keys are the engine's own flags in snake_case. `dialect` says whose API and metrics an
    `emulated` engine speaks. `python` is the interpreter of the engine's own environment.
    """

    type: str = "emulated"
    version: str | None = None
    dialect: Literal["vllm", "sglang"] = "vllm"
    args: dict[str, Any] = {}
    env: dict[str, str] = {}
    python: str | None = None


class ParallelConfig(Part):
    """Tensor, pipeline, data and expert parallelism of a unit."""

    tp: Positive = 1
    pp: Positive = 1
    dp: Positive = 1
    ep: Positive = 1


class UnitConfig(Part):
    """The atomic unit: `gpus` a node over `nodes` nodes. gpus 0 means CPU."""

    nodes: Positive = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    parallel: ParallelConfig = ParallelConfig()

    @model_validator(mode="after")
    def _gpus_match_parallelism(self) -> Self:
        p = self.parallel
        need, have = p.tp * p.pp * p.dp, self.nodes * self.gpus
        if have and need != have:
            raise ValueError(
                f"tp × pp × dp = {p.tp} × {p.pp} × {p.dp} = {need} GPUs, "
                f"but nodes × gpus = {self.nodes} × {self.gpus} = {have}"
            )
        return self


class Cluster(Part):
    """A place units run in. `rtt_ms` is the round trip from the router."""

    name: Name
    target: Literal["local"] = "local"
    rtt_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0


class UnitCounts(Part):
    """How many units of a pool take traffic."""

    ready: Count = 1


class Pool(Part):
    """Units of one role that scale together. `model` defaults to the profile's only model."""

    name: Name
    model: ModelName | None = None
    role: Literal["unified"] = "unified"
    cluster: Name | None = None
    units: UnitCounts = UnitCounts()


class PluginRef(BaseModel):
    """A plugin by entry-point name or import path; further keys are its parameters."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    type: str
    weight: Annotated[float, Field(ge=0, le=1_000_000)] = 1.0

    @property
    def parameters(self) -> dict[str, Any]:
        """The plugin's own fields."""
        return dict(self.model_extra or {})


Plugin = str | PluginRef


class Limits(Part):
    """Bounds on what clients may ask of the router. `continuation_mib_max` bounds what is kept of
    all streams together, so that another engine can go on with them; 0 keeps nothing."""

    body_mib_max: Annotated[int, Field(gt=0, le=1024)] = 16
    headers_kib_max: Annotated[int, Field(gt=0, le=1024)] = 32
    connections_max: Annotated[int, Field(gt=0, le=1_000_000)] = 16_384
    header_s: Annotated[float, Field(gt=0)] = 10.0
    body_s: Annotated[float, Field(gt=0)] = 60.0
    idle_s: Annotated[float, Field(gt=0)] = 75.0
    connect_s: Annotated[float, Field(gt=0)] = 3.0
    first_byte_s: Annotated[float, Field(gt=0)] = 600.0
    stream_idle_s: Annotated[float, Field(gt=0)] = 120.0
    continuation_mib_max: Annotated[int, Field(ge=0, le=65_536)] = 256


class Health(Part):
    """What takes endpoints out and brings them back. `failures` probes in a row eject one.

    At most `ejected_share_max` of the endpoints of a model are out at once because they fail too
    many requests or are far slower than the others. `verify`: an endpoint answers canary prompts,
    compared with its first answers, before it takes traffic. An endpoint that joins a fleet under
    load gets its share of requests gradually, within `slow_start_s`; 0 turns that off.
    """

    interval_s: Annotated[float, Field(gt=0)] = 1.0
    timeout_s: Annotated[float, Field(gt=0)] = 2.0
    failures: Positive = 2
    ejected_share_max: Annotated[float, Field(ge=0, le=1)] = 0.3
    verify: bool = True
    slow_start_s: Annotated[float, Field(ge=0, le=3600)] = 10.0


class Tls(Part):
    """The router's own certificate: PEM files, read again when they change."""

    cert_file: str
    key_file: str


class EngineTls(Part):
    """How the router meets engines at `https://`: whom it trusts (default: what this machine
    trusts), and the certificate it shows where engines ask for one."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        return self


class Flow(Part):
    """Requests wait here while every endpoint that may serve them is saturated or starting.

    At most `queue_max` wait, each for at most `queue_s`; the rest is answered 429 with Retry-After.
    `priorities` are the classes clients may name, the most urgent first; it is also the default.
    With `hold` false, every request goes to an engine at once and waits there; only for endpoints
    that are starting, while none is ready, requests wait here.
    """

    hold: bool = True
    queue_max: Count = 2000
    queue_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    priorities: Annotated[list[Name], Field(min_length=1, max_length=8)] = ["interactive", "batch"]

    @model_validator(mode="after")
    def _each_class_once(self) -> Self:
        if len(set(self.priorities)) < len(self.priorities):
            raise ValueError("priorities names a class twice")
        return self


class Routing(Part):
    """The policy, and what protects the router. `extra_paths` extends the allow-list.

    A request is tried at most `attempts_max` times; beyond what quiet times have saved up (1,000),
    retries are at most `retry_share` of the requests, so that they cannot amplify an outage. With a
    `hedge_share`, up to that share of the requests goes to a second endpoint too when its first
    byte is long overdue, and whoever answers first wins.
    With a `keys_file` only clients with one of its API keys get in (`infctl router keys`); with
    `tls` the router speaks HTTPS alone.
    """

    handler: Plugin = "single"
    filters: list[Plugin] = ["ready", "role", "model"]
    scorers: list[Plugin] = ["predicted-ttft"]
    picker: Plugin = "best"
    attempts_max: Annotated[int, Field(gt=0, le=10)] = 3
    retry_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    hedge_share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    drain_s: Annotated[float, Field(ge=0)] = 30.0
    extra_paths: list[Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")]] = []
    flow: Flow = Flow()
    limits: Limits = Limits()
    health: Health = Health()
    keys_file: str | None = None
    tls: Tls | None = None
    engine_tls: EngineTls | None = None


class Slo(Part):
    """What a good request is. Goodput counts requests that meet every bound."""

    ttft_ms: Annotated[float, Field(gt=0)] = 2000.0
    tpot_ms: Annotated[float, Field(gt=0)] = 50.0
    target: Annotated[float, Field(gt=0, le=1)] = 0.99


class Observability(Part):
    """Where metrics are served: on the router's own port, or on one of their own. With an
    `otlp_endpoint` the router sends OpenTelemetry spans to this collector (OTLP over HTTP; needs
    the extra `otel`)."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = None


class Profile(Part):
    """A fleet. See docs/profile.md; `infctl profile schema` prints the JSON schema."""

    apiVersion: Literal["infctl/v1"] = "infctl/v1"
    kind: Literal["Profile"] = "Profile"
    metadata: Metadata
    models: Annotated[list[Model], Field(min_length=1, max_length=1000)]
    engine: EngineConfig = EngineConfig()
    unit: UnitConfig = UnitConfig()
    clusters: Annotated[list[Cluster], Field(min_length=1)] = [Cluster(name="local")]
    pools: Annotated[list[Pool], Field(min_length=1)]
    routing: Routing = Routing()
    slo: Slo = Slo()
    observability: Observability = Observability()

    def model_of(self, pool: Pool) -> Model:
        """The model a pool serves."""
        wanted = pool.model or self.models[0].name
        return next(m for m in self.models if m.name == wanted)

    def cluster_of(self, pool: Pool) -> Cluster:
        """The cluster a pool lives in."""
        wanted = pool.cluster or self.clusters[0].name
        return next(c for c in self.clusters if c.name == wanted)
