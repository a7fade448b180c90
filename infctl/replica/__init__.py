"""The engine timing model, shared by simulator and emulator. Pure."""

from infctl.replica.machine import (
    Finished,
    FirstToken,
    Happening,
    Preempted,
    Replica,
    ReplicaLoad,
    ReplicaOptions,
    ReplicaRequest,
    Resumed,
)

__all__ = [
    "Finished",
    "FirstToken",
    "Happening",
    "Preempted",
    "Replica",
    "ReplicaLoad",
    "ReplicaOptions",
    "ReplicaRequest",
    "Resumed",
]
