"""The public SDK for plugin authors: types, protocols, and what codecs and workloads share.

Plugins import this module and `infctl.testing`, nothing else of infctl. A plugin is a frozen
`msgspec.Struct` whose fields are its YAML parameters. See docs/plugins.md.
"""

from infctl.codec.flags import flags
from infctl.codec.metrics_text import Sample, Series, absent, by_rank, label, scan
from infctl.core.fleet import Column, Endpoint, Fleet, Load, Mask
from infctl.core.prefix import BLOCK_ENDS
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
from infctl.workload.sampling import Draws, Quantiles
from infctl.workload.sessions import SessionModel

__all__ = [
    "BLOCK_ENDS",
    "Capabilities",
    "Column",
    "Draws",
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
    "Quantiles",
    "RankCommand",
    "Request",
    "Role",
    "Sample",
    "Scorer",
    "Segment",
    "Series",
    "SessionModel",
    "TimingModel",
    "UnitSpec",
    "Workload",
    "WorkloadRequest",
    "absent",
    "by_rank",
    "flags",
    "label",
    "scan",
]
