"""The public SDK for plugin authors: types and protocols only.

Plugins import this module and `infctl.testing`, nothing else of infctl. A plugin is a frozen
`msgspec.Struct` whose fields are its YAML parameters. See docs/plugins.md.
"""

from infctl.core.fleet import Column, Endpoint, Fleet, Load, Mask
from infctl.core.request import Request, Role
from infctl.core.scheduling import Filter, Handler, Picker, Scorer
from infctl.engine import (
    Capabilities,
    Engine,
    Parallel,
    Probe,
    RankCommand,
    UnitSpec,
)
from infctl.errors import InputError
from infctl.timing import TimingModel
from infctl.workload.model import Segment, Workload, WorkloadRequest

__all__ = [
    "Capabilities",
    "Column",
    "Endpoint",
    "Engine",
    "Filter",
    "Fleet",
    "Handler",
    "InputError",
    "Load",
    "Mask",
    "Parallel",
    "Picker",
    "Probe",
    "RankCommand",
    "Request",
    "Role",
    "Scorer",
    "Segment",
    "TimingModel",
    "UnitSpec",
    "Workload",
    "WorkloadRequest",
]
