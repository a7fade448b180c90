"""The requests of a run: a built-in workload or a trace, cut to the limit and the context."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec

from infctl.errors import InputError
from infctl.runs.spec import REQUESTS_MAX, RunSpec
from infctl.workload.model import Workload, WorkloadRequest
from infctl.workload.traces import open_trace

DEFAULT_LIMIT = 1000


class Plan(msgspec.Struct, frozen=True):
    """Requests in order of arrival, how many did not fit the model, and remarks."""

    requests: list[WorkloadRequest]
    skipped: int
    notes: list[str]


def is_trace(workload: str) -> bool:
    """Whether a workload is meant as a file: it exists, or it looks like one."""
    path = Path(workload)
    return ":" not in workload and (path.exists() or bool(path.suffix) or "/" in workload)


def open_workload(spec: RunSpec) -> Workload:
    """The workload a spec names. Raises InputError."""
    if is_trace(spec.workload):
        if spec.parameters:
            raise InputError("a trace takes no parameters", where=spec.workload)
        return open_trace(spec.workload)
    from infctl.compose import load
    from infctl.profile.model import PluginRef

    ref = PluginRef(type=spec.workload, **spec.parameters) if spec.parameters else spec.workload
    workload: Workload = load("workload", ref)
    return workload


def load_requests(spec: RunSpec) -> tuple[list[WorkloadRequest], list[str]]:
    """The requests of a run in order of arrival, and remarks. Built-in workloads are endless:
    without a limit they give 1,000. Raises InputError when there are none."""
    workload = open_workload(spec)
    is_endless = not is_trace(spec.workload)
    limit = spec.limit or (DEFAULT_LIMIT if is_endless else REQUESTS_MAX)
    requests = list(islice(workload.requests(spec.seed, limit), limit))
    if not requests:
        raise InputError("the workload has no requests", where=spec.workload)
    return requests, list(getattr(workload, "notes", ()))


def fit(
    spec: RunSpec, requests: list[WorkloadRequest], notes: list[str], context_tokens: int | None
) -> Plan:
    """What will be sent. A request that exceeds the model's context is skipped, not cut: cutting
    would change the workload. Raises InputError when none is left."""
    if context_tokens is None:
        return Plan(requests, 0, notes)
    fitting = [r for r in requests if r.input_tokens + r.output_tokens <= context_tokens]
    skipped = len(requests) - len(fitting)
    if not fitting:
        raise InputError(
            f"none of {len(requests)} requests fits the model's context of "
            f"{context_tokens:,} tokens",
            where=spec.workload,
            hint="Choose a workload with shorter prompts, or a model with a longer context.",
        )
    if skipped:
        remark = (
            f"{skipped} of {len(requests)} requests exceed the model's context of "
            f"{context_tokens:,} tokens and were not sent."
        )
        notes = [*notes, remark]
    return Plan(fitting, skipped, notes)


def duration_s(spec: RunSpec) -> float:
    """Engine seconds from the first to the last arrival of a spec's workload, at its rate scale."""
    requests, _ = load_requests(spec)
    return (requests[-1].at_s - requests[0].at_s) / spec.rate_scale
