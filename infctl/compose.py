"""Composition: from a profile's words to objects. The only place that sees profile and core.

Plugins are found by entry point (`type: queue-depth`) or import path
(`type: "acme.routing:Magic"`); only what a profile names is imported. Their fields are their
YAML parameters, checked strictly.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import os
import sys
import traceback
from functools import cache
from importlib import metadata, resources
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.actuator import DesiredUnit
from infctl.core.scheduling import Filter, Handler, Picker, Pipeline, Scorer, Weighted
from infctl.engine import Engine, Parallel, UnitSpec
from infctl.errors import InputError
from infctl.timing import TimingModel
from infctl.workload.model import Workload

if TYPE_CHECKING:
    from infctl.profile.model import Plugin, PluginRef, Pool, Profile

SEAMS: dict[str, type | None] = {
    "engine": Engine,
    "filter": Filter,
    "scorer": Scorer,
    "picker": Picker,
    "handler": Handler,
    "workload": Workload,
    "actuator": None,
}


class PluginInfo(msgspec.Struct, frozen=True):
    """A registered plugin. `summary` is the first line of its docstring, '' if it won't load."""

    seam: str
    name: str
    ref: str
    distribution: str
    summary: str


_IMPORTERS = frozenset({__file__, importlib.__file__, metadata.__file__})


def _add_plugin_path() -> None:
    folder = os.environ.get("INFCTL_PLUGIN_PATH")
    for path in reversed(folder.split(os.pathsep) if folder else []):
        if path and path not in sys.path:
            sys.path.insert(0, path)


@cache
def _registered(seam: str) -> dict[str, EntryPoint]:
    _add_plugin_path()
    return {e.name: e for e in entry_points(group=f"infctl.{seam}")}


def names(seam: str) -> list[str]:
    """Registered plugin names of a seam, sorted."""
    return sorted(_registered(seam))


def catalogue(seam: str | None = None) -> list[PluginInfo]:
    """Every registered plugin of one seam or of all."""
    return [
        _info(each, entry)
        for each in ([seam] if seam else SEAMS)
        for _, entry in sorted(_registered(each).items())
    ]


def _info(seam: str, entry: EntryPoint) -> PluginInfo:
    try:
        summary = (entry.load().__doc__ or "").strip().split("\n")[0]
    except Exception:  # a broken third-party plugin must not break the list
        summary = ""
    distribution = entry.dist.name if entry.dist else ""
    return PluginInfo(seam, entry.name, entry.value, distribution, summary)


def find(seam: str, ref: str) -> type[Any]:
    """The plugin class a reference names. Raises InputError."""
    if seam not in SEAMS:
        raise InputError(f"there is no seam {seam!r}", hint=f"Seams: {', '.join(SEAMS)}.")
    entry = _registered(seam).get(ref)
    if entry is None and ":" not in ref:
        close = difflib.get_close_matches(ref, names(seam), 1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise InputError(
            f"there is no {seam} named {ref!r}",
            hint=f"{hint}Registered: {', '.join(names(seam))}; or an import path, `module:Class`.",
        )
    try:
        found = entry.load() if entry else _import(ref)
    except Exception as error:  # whatever a plugin's module does on import is the plugin's fault
        raise InputError(
            f"the {seam} {ref!r} cannot be imported: {_at(error)}",
            hint="Install its package, or add its folder to INFCTL_PLUGIN_PATH."
            if isinstance(error, ImportError | AttributeError)
            else "The plugin is wrong: correct that file.",
        ) from error
    if not isinstance(found, type):
        raise InputError(f"the {seam} {ref!r} is not a class")
    return found


def _at(error: Exception) -> str:
    """What an import failed with, and the plugin's file and line if it got that far."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith("<") and f.filename not in _IMPORTERS]
    if not own:
        return str(error)
    return f"{own[-1].filename}:{own[-1].lineno}: {type(error).__name__}: {error}"


def _import(ref: str) -> Any:
    _add_plugin_path()
    module, _, attribute = ref.partition(":")
    return getattr(importlib.import_module(module), attribute)


def package(seam: str, ref: str) -> tuple[str, str]:
    """Name and version of the package a reference's plugin comes from; empty for a lone module."""
    entry = _registered(seam).get(ref)
    return (entry.dist.name, entry.dist.version) if entry and entry.dist else ("", "")


def load(seam: str, ref: Plugin, where: str | None = None) -> Any:
    """An instance of the plugin a profile names, with its parameters. Raises InputError."""
    name, parameters = (ref, {}) if isinstance(ref, str) else (ref.type, ref.parameters)
    cls = find(seam, name)
    try:
        instance = msgspec.convert(parameters, cls) if parameters else cls()
        unknown = set(parameters) - set(getattr(cls, "__struct_fields__", ()))
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError(f"{seam} {name!r}: {error}", where=where) from error
    except Exception as error:  # a plugin's own checks may raise what they like
        raise InputError(f"{seam} {name!r} cannot be made: {_at(error)}", where=where) from error
    if unknown:
        raise InputError(_unknown(seam, name, sorted(unknown), cls), where=where)
    protocol = SEAMS[seam]
    if protocol is not None and not isinstance(instance, protocol):
        raise InputError(
            f"{name!r} is not a {seam}: it lacks what infctl.plugin.{protocol.__name__} asks for",
            where=where,
        )
    return instance


def _unknown(seam: str, name: str, unknown: list[str], cls: type[Any]) -> str:
    fields = list(getattr(cls, "__struct_fields__", ()))
    parts = []
    for key in unknown:
        close = difflib.get_close_matches(key, fields, 1)
        parts.append(f"{key!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    known = ", ".join(fields) or "none"
    return f"{seam} {name!r} has no parameter {', '.join(parts)}; it takes: {known}"


# --- policies -------------------------------------------------------------------------------------

# What `--policy` takes beside every scorer's name: the parts of a profile's routing it replaces.
_POLICIES: dict[str, dict[str, Any]] = {"round-robin": {"picker": "round-robin"}}


def _ref_name(ref: Plugin) -> str:
    return ref if isinstance(ref, str) else ref.type


def policy_name(profile: Profile) -> str:
    """What results call the profile's own policy: its scorers, or its picker if it ignores them."""
    picker = find("picker", _ref_name(profile.routing.picker))
    if not getattr(picker, "uses_scores", True):
        return _ref_name(profile.routing.picker)
    return "+".join(_ref_name(s) for s in profile.routing.scorers) or "no-scorer"


def policies() -> list[str]:
    """Names `--policy` takes."""
    return sorted({*_POLICIES, *names("scorer")})


def with_policy(profile: Profile, policy: str) -> Profile:
    """The profile with its routing parts replaced by a named policy. Raises InputError."""
    parts = _POLICIES.get(policy)
    if parts is None and policy in names("scorer"):
        parts = {"scorers": [policy], "picker": "best"}
    if parts is None:
        close = difflib.get_close_matches(policy, policies(), 1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise InputError(
            f"there is no policy {policy!r}", hint=f"{hint}Policies: {', '.join(policies())}."
        )
    routing = profile.routing.model_dump() | parts
    return type(profile).model_validate(profile.model_dump() | {"routing": routing})


def pipeline(profile: Profile) -> Pipeline:
    """The compiled scheduling pipeline of a profile. Raises InputError."""
    routing = profile.routing
    filters = [(_ref_name(f), load("filter", f, "routing.filters")) for f in routing.filters]
    scorers = [
        Weighted(_ref_name(s), load("scorer", s, "routing.scorers"), _weight(s))
        for s in routing.scorers
    ]
    picker = load("picker", routing.picker, "routing.picker")
    load("handler", routing.handler, "routing.handler")
    return Pipeline(filters, scorers, picker, policy_name(profile))


def _weight(ref: str | PluginRef) -> float:
    return 1.0 if isinstance(ref, str) else ref.weight


def engine(kind: str) -> Engine:
    """The engine codec of a kind. Raises InputError."""
    found: Engine = load("engine", kind, "engine.type")
    return found


class Route(msgspec.Struct, frozen=True):
    """One row of the route table: a model's requests go to a pool's units by weight (a share)."""

    model: str
    aliases: tuple[str, ...]
    bucket: str
    pool: str
    cluster: str
    role: str
    rtt_ms: float
    weight: float
    endpoints: tuple[str, ...]


def route_table(profile: Profile) -> list[Route]:
    """Model × bucket → pools → endpoints, with the share of units each pool has."""
    return [
        _route(profile, pool, total)
        for model in profile.models
        for pools in [[p for p in profile.pools if profile.model_of(p) == model]]
        for total in [sum(p.units.ready for p in pools)]
        for pool in pools
    ]


def _route(profile: Profile, pool: Pool, total: int) -> Route:
    model, cluster, count = profile.model_of(pool), profile.cluster_of(pool), pool.units.ready
    return Route(
        model=model.name,
        aliases=tuple(model.aliases),
        bucket="all",
        pool=pool.name,
        cluster=cluster.name,
        role=pool.role,
        rtt_ms=cluster.rtt_ms,
        weight=count / total if total else 0.0,
        endpoints=tuple(f"{pool.name}-{index}" for index in range(count)),
    )


# --- units ----------------------------------------------------------------------------------------


@cache
def timing(name: str) -> TimingModel:
    """A shipped timing model, or one from a YAML file by path. Raises InputError."""
    import yaml

    shipped = resources.files("infctl_profiles") / "timing"
    source = Path(name) if name.endswith((".yaml", ".yml")) else shipped / f"{name}.yaml"
    try:
        text = source.read_text()
    except OSError as error:
        known = sorted(f.name.removesuffix(".yaml") for f in shipped.iterdir())
        close = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise InputError(
            f"there is no timing model {name!r}", hint=f"{hint}Shipped: {', '.join(known)}."
        ) from error
    try:
        return msgspec.convert(yaml.safe_load(text), TimingModel)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise InputError(f"not a timing model: {error}", where=str(source)) from error


def desired_units(
    profile: Profile, *, emulate: bool = False, speed: float = 1.0
) -> tuple[DesiredUnit, ...]:
    """The units a profile asks for. `emulate` swaps the engine for an emulated one.

    Raises InputError when a model has no timing model to emulate it with.
    """
    return tuple(
        _desired(profile, pool, index, emulate, speed)
        for pool in profile.pools
        for index in range(pool.units.ready)
    )


def _desired(profile: Profile, pool: Pool, index: int, emulate: bool, speed: float) -> DesiredUnit:
    model, cluster = profile.model_of(pool), profile.cluster_of(pool)
    kind = "emulated" if emulate else profile.engine.type
    emulated = kind == "emulated"
    if emulated and model.timing is None:
        raise InputError(
            f"model {model.name!r} has no timing model, so its engine cannot be emulated",
            where="models.timing",
            hint="Name one: `timing: deepseek-v3-8xh200-tp8`.",
        )
    foreign = emulated and profile.engine.type != "emulated"
    spec = UnitSpec(
        unit=f"{pool.name}-{index}",
        model=model.name,
        model_path=model.path or model.name,
        aliases=tuple(model.aliases),
        context_tokens=model.context_tokens,
        host="127.0.0.1",
        port=0,
        nodes=1 if emulated else profile.unit.nodes,
        gpus_per_node=profile.unit.gpus,
        parallel=Parallel(**profile.unit.parallel.model_dump()),
        args=_emulated_args(profile.engine.args) if foreign else dict(profile.engine.args),
        env={} if foreign else dict(profile.engine.env),
        python=sys.executable if emulated else _engine_python(profile, kind),
        timing=timing(model.timing) if emulated and model.timing else None,
        speed=speed,
        seed=index,
        dialect=profile.engine.type if foreign else profile.engine.dialect,
    )
    alike = msgspec.structs.replace(spec, unit="", seed=0)  # units of a pool are of one revision
    revision = hashlib.sha256(msgspec.msgpack.encode(alike)).hexdigest()[:12]
    return DesiredUnit(
        name=spec.unit,
        pool=pool.name,
        cluster=cluster.name,
        role=pool.role,
        engine=kind,
        models=(model.name, *model.aliases),
        revision=revision,
        spec=spec,
        rtt_ms=cluster.rtt_ms,
    )


# Engine arguments that mean the same to an emulated engine, by either engine's name for them.
_SHARED_ARGS = {
    "max_num_seqs": "max_num_seqs",
    "max_running_requests": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "chunked_prefill_size": "max_num_batched_tokens",
    "block_size": "block_size",
    "page_size": "block_size",
}


def _emulated_args(args: dict[str, Any]) -> dict[str, Any]:
    return {_SHARED_ARGS[k]: v for k, v in args.items() if k in _SHARED_ARGS}


def _engine_python(profile: Profile, kind: str) -> str:
    variable = engine(kind).python_env
    named = profile.engine.python or (os.environ.get(variable) if variable else None)
    return named or sys.executable
