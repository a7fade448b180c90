"""What a log says of where it comes from, and what it keeps to itself."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from infctl import __version__, provenance
from infctl.core.eventlog import Origin
from infctl.core.inflight import Inflight, SharedInflight
from infctl.profile.model import Profile

DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "t"},
    "models": [{"name": "m"}],
    "pools": [{"name": "p"}],
    "engine": {"type": "vllm", "args": {"api_key": "sk-1"}, "env": {"HF_TOKEN": "hf-2"}},
    "routing": {
        "scorers": [{"type": "queue-depth", "limit": 7, "weight": 2.0}, "kv-usage"],
        "keys_file": "/etc/keys-3",
        "tls": {"cert_file": "/etc/cert-4", "key_file": "/etc/key-5"},
        "engine_tls": {"ca_file": "/etc/ca-6"},
        "flow": {"queue_s": 7.0, "queue_max": 9},
    },
    "observability": {"otlp_endpoint": "http://otel-7"},
}


def made(**more: Any) -> Any:
    profile = Profile.model_validate(DOCUMENT)
    return provenance.header(profile, seed=3, speed=2.0, wall_s=0.0, now=5.0, **more)


def test_no_secret_is_in_it() -> None:
    text = msgspec.json.encode(made()).decode()
    secrets = ("sk-1", "hf-2", "keys-3", "cert-4", "key-5", "ca-6", "otel-7")
    assert [s for s in secrets if s in text] == []
    assert made().started == "1970-01-01T00:00:00.000+00:00"


def test_the_director_is_the_profiles_own() -> None:
    director = provenance.director(made())
    scorers = [(w.name, w.scorer, w.weight) for w in director.pipeline.scorers]
    assert [(n, w) for n, _, w in scorers] == [("queue-depth", 2.0), ("kv-usage", 1.0)]
    assert scorers[0][1].limit == 7  # type: ignore[attr-defined]
    assert (director.settings.queue_max, director.settings.queue_s) == (9, 3.5)
    assert type(director.inflight) is Inflight
    assert type(provenance.director(made(shared_slots=16)).inflight) is SharedInflight


def test_plugins_have_an_origin_and_its_changes_are_told() -> None:
    header = made()
    assert provenance.differences(header) == []
    origins = {o.name: o for o in header.policy.plugins}
    assert list(origins) == ["ready", "role", "model", "queue-depth", "kv-usage", "best", "single"]
    best = origins["best"]
    assert (best.seam, best.package, best.version) == ("picker", "infctl", __version__)
    assert len(best.digest) == 16
    plugins = [
        Origin("picker", "best", "infctl", "0.0.1", best.digest) if o is best else o
        for o in header.policy.plugins
    ]
    policy = msgspec.structs.replace(header.policy, plugins=plugins)
    changed = msgspec.structs.replace(header, numpy="1.9", policy=policy)
    assert provenance.differences(changed) == [
        f"numpy 1.9 then, {np.__version__} now",
        f"picker best: infctl 0.0.1 then, infctl {__version__} now",
    ]
