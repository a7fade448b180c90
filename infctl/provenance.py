"""What an event log's header says of its Director, and the same Director from a header."""

from __future__ import annotations

import inspect
import platform
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from infctl import __version__, compose
from infctl.core.director import Director
from infctl.core.eventlog import Header, Origin, Policy
from infctl.core.fleet import SHARED
from infctl.core.inflight import SharedInflight
from infctl.errors import InputError
from infctl.profile.model import Profile
from infctl.settings import director_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_HIDDEN: dict[str, Any] = {
    "routing": {"keys_file", "tls", "engine_tls"},
    "engine": {"args", "env", "python"},
    "observability": True,
}
"""Names of files and hosts, and what may hold secrets. None of it decides where a request goes."""


def policy(profile: Profile) -> Policy:
    """What decides, of a profile."""
    shown = profile.model_dump(mode="json", exclude=_HIDDEN)
    return Policy(shown, list(_origins(profile)))


def _origins(profile: Profile) -> Iterator[Origin]:
    routing = profile.routing
    named = [("filter", f) for f in routing.filters] + [("scorer", s) for s in routing.scorers]
    for seam, ref in [*named, ("picker", routing.picker), ("handler", routing.handler)]:
        name = ref if isinstance(ref, str) else ref.type
        yield Origin(seam, name, *compose.package(seam, name), _digest(seam, name))


def _digest(seam: str, name: str) -> str:
    """Of a plugin's source file, empty where there is none."""
    try:
        source = inspect.getsourcefile(compose.find(seam, name))
        return sha256(Path(source).read_bytes()).hexdigest()[:16] if source else ""
    except (OSError, TypeError):
        return ""


def header(
    profile: Profile,
    *,
    seed: int,
    speed: float,
    wall_s: float,
    now: float,
    worker: int = 0,
    shared_slots: int = 0,
) -> Header:
    """The header of a log that begins now."""
    return Header(
        infctl=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        machine=platform.machine(),
        started=datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds"),
        started_s=now,
        seed=seed,
        speed=speed,
        worker=worker,
        shared_slots=shared_slots,
        policy=policy(profile),
    )


def profile_of(policy: Policy) -> Profile:
    """The profile that a log went by. Raises InputError."""
    try:
        return Profile.model_validate(policy.profile)
    except ValidationError as error:
        raise InputError(
            f"this infctl ({__version__}) does not take the profile in the log: "
            f"{error.errors()[0]['msg']}",
            hint="Replay it with the version that wrote it.",
        ) from error


def director(header: Header) -> Director:
    """The Director that a log began with. Raises InputError."""
    profile = profile_of(header.policy)
    settings = director_settings(profile.routing, header.speed)
    made = Director(compose.pipeline(profile), Random(header.seed), settings)
    if header.shared_slots:
        own = np.zeros((len(SHARED), header.shared_slots))
        made.inflight = SharedInflight(made, own, lambda slot, blocks, held: None)
    return made


def differences(header: Header) -> list[str]:
    """What of this installation is not as it was where the log was written, and may decide
    otherwise. Raises InputError for a plugin that is not here."""
    then = header.infctl, header.python, header.numpy, header.machine
    now = __version__, platform.python_version(), np.__version__, platform.machine()
    found = [
        f"{name} {was} then, {is_} now"
        for name, was, is_ in zip(("infctl", "Python", "numpy", "machine"), then, now, strict=True)
        if was != is_
    ]
    return found + changed(header.policy)


def changed(then: Policy) -> list[str]:
    """Plugins that are not what they were. Raises InputError for one that is not here."""
    now = policy(profile_of(then)).plugins
    return [_change(a, b) for a, b in zip(then.plugins, now, strict=False) if a != b]


def _change(then: Origin, now: Origin) -> str:
    if (then.package, then.version) != (now.package, now.version):
        was, is_ = (f"{o.package} {o.version}".strip() or "a module" for o in (then, now))
        return f"{then.seam} {then.name}: {was} then, {is_} now"
    return f"{then.seam} {then.name}: its source file has changed"
