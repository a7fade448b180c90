"""`result.json`, version 1: what a run came to. See docs/results.md.

Every figure comes from the client's samples; all ms are engine time. The shape is a public
contract: fields may be added, none renamed or removed without a new `schema_version`.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infctl.errors import InputError, MachineError
from infctl.slo import Percentiles, Slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infctl.runs.spec import RunSpec

SCHEMA_VERSION = 1
_BYTES_MAX = 256 << 20


class EndpointResult(msgspec.Struct, frozen=True):
    """What one endpoint did. `running` are (engine s, open requests) points."""

    endpoint: str
    requests: int
    errors: int
    input_tokens: int
    output_tokens: int
    prefix_hit_rate: float | None
    ttft_ms: Percentiles
    running: list[tuple[float, float]] = []


class LengthBucket(msgspec.Struct, frozen=True):
    """Requests with from_tokens < prompt tokens ≤ to_tokens (None: no upper bound)."""

    from_tokens: int
    to_tokens: int | None
    requests: int
    prefix_hit_rate: float | None
    ttft_ms_p50: float | None


class Curves(msgspec.Struct, frozen=True):
    """Points for charts, thinned out: TTFT CDF (ms, share), output rate (engine s, tokens/s)."""

    ttft_cdf: list[tuple[float, float]] = []
    output_rate: list[tuple[float, float]] = []
    by_length: list[LengthBucket] = []


class SelfCheck(msgspec.Struct, frozen=True):
    """Whether the client kept up. `late` and `loop_lag` are engine ms; `passed` False means the
    figures say more about the client than about the server, and `reasons` say why."""

    passed: bool
    reasons: list[str]
    late_ms_p50: float | None
    late_ms_p99: float | None
    loop_lag_ms_p50: float
    loop_lag_ms_p99: float
    lag_ms_max: float
    cpu_share: float
    negative_ttft: int
    connections: int
    wall_s: float


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's run. `requests` counts every measured request, failed ones included;
    percentiles are over those that finished. `goodput` is good requests a second, `good_share`
    good requests over all. `prefix_hit_rate` is Σ cached_tokens / Σ prompt_tokens of the engines'
    usage, None if no engine reported any; `prefix_ceiling` what an infinite cache would hit. A
    `simulated` run had neither client nor network, and its `client` says nothing but `wall_s`."""

    policy: str
    requests: int
    errors: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    output_tokens_per_s: float
    goodput: float
    prefix_hit_rate: float | None
    per_endpoint: list[EndpointResult]
    good_share: float
    requests_per_s: float
    duration_s: float
    input_tokens: int
    output_tokens: int
    prefix_ceiling: float
    skipped: int
    errors_by_kind: dict[str, int]
    model: str
    url: str
    bytes_per_token: float
    curves: Curves
    client: SelfCheck
    notes: list[str] = []
    simulated: bool = False


class ClientCheck(msgspec.Struct, frozen=True):
    """The self-checks of all runs in one verdict; each run's own is in its `client`."""

    passed: bool
    reasons: list[str]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The document. The first run is the one the others are compared with."""

    schema_version: int
    runs: list[RunResult]
    workload: str
    seed: int
    speed: float
    rate_scale: float
    client: ClientCheck
    slo: Slo
    limit: int | None = None
    concurrency: int | None = None
    api: str = "completions"
    notes: list[str] = []
    command: str = ""


def build(runs: Sequence[RunResult], spec: RunSpec, command: str = "") -> Result:
    """Join runs of one spec (which differ in policy alone) into a result.

    `command` is the command line that makes it again.
    """
    reasons = [f"{r.policy or r.url}: {text}" for r in runs for text in r.client.reasons]
    return Result(
        schema_version=SCHEMA_VERSION,
        runs=list(runs),
        workload=spec.workload,
        seed=spec.seed,
        speed=spec.speed,
        rate_scale=spec.rate_scale,
        client=ClientCheck(all(r.client.passed for r in runs), reasons),
        slo=spec.slo,
        limit=spec.limit,
        concurrency=spec.concurrency,
        api=spec.api,
        notes=list(dict.fromkeys(note for run in runs for note in run.notes)),
        command=command,
    )


def encode(result: Result) -> bytes:
    """The document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def write(result: Result, path: Path) -> None:
    """Write the document, replacing an older one at once. Raises MachineError."""
    write_file(path, encode(result))


def check_folder(folder: Path) -> None:
    """Raise MachineError if results cannot be written there: before they are measured, not after.

    Leaves nothing behind.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise MachineError(
            f"results cannot be written there: {error.strerror}",
            where=str(folder),
            hint="Choose another folder with --out.",
        ) from error
    finally:
        for each in made:
            with suppress(OSError):
                each.rmdir()


def write_file(path: Path, data: bytes) -> None:
    """Write a file by way of a neighbour, so that nobody reads half of it. Raises MachineError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        hint = "Choose another folder with --out."
        raise MachineError(
            f"cannot be written: {error.strerror}", where=str(path), hint=hint
        ) from (error)


def read(path: Path) -> Result:
    """Read a result.json, or the one in a folder. Raises InputError."""
    path = path / "result.json" if path.is_dir() else path
    hint = "Give a result.json that infctl wrote, or its folder."
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise InputError("too large to be a result", where=str(path), hint=hint)
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from error
    try:
        result = msgspec.json.decode(data, type=Result)
    except msgspec.MsgspecError as error:
        raise InputError(f"is not a result: {error}", where=str(path), hint=hint) from error
    if result.schema_version != SCHEMA_VERSION or not result.runs:
        raise InputError(
            f"has schema_version {result.schema_version} and {len(result.runs)} runs; this infctl "
            f"reads version {SCHEMA_VERSION} with at least one run",
            where=str(path),
            hint=hint,
        )
    return result
