"""An engine codec for fake_server.py: `engine.type: fake_engine:Fake`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import msgspec

from infctl.plugin import Capabilities, Load, Probe, RankCommand, UnitSpec

SERVER = Path(__file__).with_name("fake_server.py")


class Fake(msgspec.Struct, frozen=True):
    """An engine for tests."""

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[Capabilities] = Capabilities()
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = None
    python_env: ClassVar[str | None] = "INFCTL_FAKE_PYTHON"
    owned_fields: ClassVar[frozenset[str]] = frozenset()

    def commands(self, unit: UnitSpec) -> tuple[RankCommand, ...]:
        argv = [unit.python, str(SERVER), "--port", str(unit.port)]
        for key, value in unit.args.items():
            argv += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
        return (RankCommand(tuple(argv), dict(unit.env)),)

    def phase(self, log_line: str) -> str | None:
        return "loading weights" if log_line.startswith("Loading weights") else None

    def loads(self, metrics: str) -> dict[int, Load]:
        return {0: Load()}

    def missing(self, metrics: str) -> tuple[str, ...]:
        return ()

    def recognises(self, probe: Probe) -> bool:
        return False
