"""What a run is asked for, and what the client process sends back. Plain data, as JSON lines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from infctl.slo import Slo

REQUESTS_MAX = 2_000_000

Api = Literal["completions", "chat"]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(gt=0, le=REQUESTS_MAX)]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a workload against one URL.

    `workload` is a built-in name (with `parameters`) or the path of a trace. Arrivals happen at
    `at_s / (rate_scale × speed)` on the wall; with `concurrency` that many requests are kept open
    instead. `model` '' takes the first that `/v1/models` names, `bytes_per_token` None measures
    it with one small request. `timeout_s` (wall) ends a request that makes no progress at all
    for so long. `headers` are added to every request. `endpoints` are the fleet's, where they are
    known: those that serve nothing are part of the result too.
    """

    url: str
    workload: str = "conversation"
    parameters: dict[str, Any] = {}
    model: str = ""
    limit: Count | None = None
    seed: int = 0
    speed: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    rate_scale: Positive = 1.0
    concurrency: Annotated[int, msgspec.Meta(gt=0, le=16_384)] | None = None
    bytes_per_token: Annotated[float, msgspec.Meta(gt=0, le=64)] | None = None
    api: Api = "completions"
    policy: str = ""
    slo: Slo = Slo()
    connections_max: Annotated[int, msgspec.Meta(gt=0, le=65_536)] = 4096
    timeout_s: Positive = 600.0
    headers: dict[str, str] = {}
    endpoints: Annotated[tuple[str, ...], msgspec.Meta(max_length=100_000)] = ()


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Counts so far. `total` 0 means not known yet; `running` requests are open now."""

    done: int
    total: int
    errors: int
    running: int


class Sample(msgspec.Struct, array_like=True, gc=False):
    """One request as measured. Times are engine time from the start of the run.

    `late_ms` is how far behind its arrival time it was sent. `ttft_ms` and `tpot_ms` are None
    where there was no first or no second token. `prompt_tokens` and `cached_tokens` are the
    engine's usage, None where it reports none. `error` '' means it finished.
    """

    sent_s: float
    late_ms: float
    input_tokens: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    endpoint: str = ""
    error: str = ""


class Tick(msgspec.Struct, array_like=True, gc=False):
    """Counters at a moment (engine s): tokens received so far, requests open."""

    at_s: float
    tokens: int
    running: int


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """Everything a client process measured, or a simulated one. `lag_ms` values are wall time."""

    samples: list[Sample]
    ticks: list[Tick]
    skipped: int
    model: str
    bytes_per_token: float
    prefix_ceiling: float
    notes: list[str]
    lag_ms_p50: float
    lag_ms_p99: float
    cpu_share: float
    wall_s: float
    negative_ttft: int
    connections: int
    simulated: bool = False


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The client's InfctlError, to be raised again by whoever started it."""

    kind: str
    message: str
    where: str | None = None
    hint: str | None = None


Message = Progress | Measured | Failed
