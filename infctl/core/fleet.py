"""The fleet: every endpoint a router sees, as columns.

One row per endpoint, in a stable slot. Scorers read whole columns (numpy float64), events write
single cells through memoryviews, which costs a quarter of a numpy item assignment. `version`
changes with membership and state, so that masks can be cached between changes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    Cells = memoryview[float]

Column = NDArray[np.float64]
"""One float per slot."""

Mask = NDArray[np.bool_]
"""One boolean per slot."""

SHARED = ("inflight", "inflight_tokens", "pending", "pending_tokens", "sent", "started")
"""The columns that say what this router has open: of all its workers, where it has several."""

_FIRST_ROWS = 8


class State(StrEnum):
    """Where an endpoint is in its life. Only READY takes traffic."""

    STARTING = "starting"
    VERIFYING = "verifying"
    READY = "ready"
    DRAINING = "draining"
    EJECTED = "ejected"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One addressable engine server.

    Identity is (unit, generation, revision, role, rank), never `url`: an address that answers may
    belong to another role or an older unit. `models` holds every name clients may ask for.
    `kv_capacity_tokens` and `context_tokens` 0 mean unknown.
    """

    unit: str
    url: str
    models: tuple[str, ...]
    generation: int = 0
    revision: str = ""
    role: str = "unified"
    rank: int = 0
    pool: str = ""
    cluster: str = ""
    engine: str = "openai"
    rtt_ms: float = 0.0
    kv_capacity_tokens: int = 0
    context_tokens: int = 0

    @property
    def id(self) -> str:
        """Short name for people and the admin API."""
        return f"{self.unit}.{self.rank}" if self.rank else self.unit


class Load(msgspec.Struct, frozen=True, gc=False):
    """One metrics scrape of one endpoint. None: the engine does not report it, never zero.

    `kv_usage` is a share in 0..1. Token and request counters are totals since engine start.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    cached_tokens_total: float | None = None
    preemptions_total: float | None = None


class Fleet:
    """Endpoints in stable slots, and their numbers as columns.

    Columns (length `len(fleet)`, index = slot; free slots hold zeros and are never ready):
    `waiting`, `running` requests as last reported; `kv_usage` 0..1; `inflight` requests open there,
    of which `foreign` are not this router's, as far as the last report tells; of this router's,
    `inflight_tokens` the tokens of their prompts, `pending` those without a first byte, and
    `pending_tokens` the uncached prompt tokens of these; `rtt_ms`;
    and what core.latency learns: `free_at_ms` (monotonic ms at which the prefill queue should be
    empty), prefill `ms_per_token` and `overhead_ms`, decode `step_ms` and `step_ms_per_request`,
    and `fixed_ms`, the sum of what does not depend on the request (overhead, a step, round trip).
    For core.saturation: requests `sent` there by this router, and `started` of them (a first token,
    or an end without one), in all; how many more than these wait there (`queued_ahead`), and from
    which number on another one would only wait (`queued_max`).
    """

    COLUMNS = (
        "waiting",
        "running",
        "kv_usage",
        *SHARED,
        "foreign",
        "rtt_ms",
        "free_at_ms",
        "ms_per_token",
        "overhead_ms",
        "step_ms",
        "step_ms_per_request",
        "fixed_ms",
        "queued_ahead",
        "queued_max",
    )

    waiting: Column
    running: Column
    kv_usage: Column
    inflight: Column
    inflight_tokens: Column
    pending: Column
    pending_tokens: Column
    foreign: Column
    rtt_ms: Column
    free_at_ms: Column
    ms_per_token: Column
    overhead_ms: Column
    step_ms: Column
    step_ms_per_request: Column
    fixed_ms: Column
    sent: Column
    started: Column
    queued_ahead: Column
    queued_max: Column

    shared: NDArray[np.float64]
    """The columns of SHARED as rows of one matrix."""

    def __init__(self) -> None:
        self.version = 0
        self.now_ms = 0.0
        self.slots: list[Endpoint | None] = []
        self.states: list[State] = []
        self.generation: list[int] = []
        self.loads: list[Load | None] = []
        self.ready: Mask = np.zeros(0, dtype=bool)
        self.cells: dict[str, Cells] = {}
        self._serving: dict[str, Mask] = {}
        self._serving_version = 0
        self._by_id: dict[str, int] = {}
        self._free: list[int] = []
        self._arrays: dict[str, Column] = {}
        self._allocate(_FIRST_ROWS)

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[tuple[int, Endpoint]]:
        return ((slot, e) for slot, e in enumerate(self.slots) if e is not None)

    def add(self, endpoint: Endpoint, state: State = State.STARTING) -> int:
        """Put an endpoint into a slot and return the slot. Raises ValueError on a taken id."""
        if endpoint.id in self._by_id:
            raise ValueError(f"endpoint {endpoint.id!r} is in the fleet already")
        slot = self._free.pop() if self._free else self._append()
        self.slots[slot] = endpoint
        self.states[slot] = state
        self.generation[slot] += 1
        self.loads[slot] = None
        self._by_id[endpoint.id] = slot
        for cells in self.cells.values():
            cells[slot] = 0.0
        self.cells["rtt_ms"][slot] = endpoint.rtt_ms
        self._changed(slot)
        return slot

    def remove(self, endpoint_id: str) -> int | None:
        """Free an endpoint's slot; None if it is not here."""
        slot = self._by_id.pop(endpoint_id, None)
        if slot is None:
            return None
        self.slots[slot] = None
        self.states[slot] = State.EJECTED
        for cells in self.cells.values():
            cells[slot] = 0.0
        self._free.append(slot)
        self._changed(slot)
        return slot

    def set_state(self, slot: int, state: State) -> None:
        """Move an endpoint to another state."""
        if self.states[slot] is not state:
            self.states[slot] = state
            self._changed(slot)

    def slot_of(self, endpoint_id: str) -> int | None:
        """The slot of an endpoint id, or None."""
        return self._by_id.get(endpoint_id)

    def mask(self, wanted: Iterator[bool]) -> Mask:
        """A column of booleans from one value per slot."""
        return np.fromiter(wanted, dtype=bool, count=len(self.slots))

    def serving(self, model: str) -> Mask:
        """The ready endpoints that have a model, to compare them with each other: what those of
        other models do says nothing. Not to be written to."""
        if self._serving_version != self.version:
            self._serving_version = self.version
            self._serving.clear()
        found = self._serving.get(model)
        if found is None:
            found = self.ready & self.mask(e is not None and model in e.models for e in self.slots)
            if found.any():  # names that nobody serves are not kept: clients may make up any
                self._serving[model] = found
        return found

    def report(self, slot: int, load: Load | None) -> None:
        """Take in a scrape. What it lacks keeps its last value, for a gap is not idleness."""
        self.loads[slot] = load
        if load is None:
            return
        for name in ("waiting", "running", "kv_usage"):
            value = getattr(load, name)
            if value is not None:
                self.cells[name][slot] = value

    def _append(self) -> int:
        slot = len(self.slots)
        if slot == len(self._arrays["waiting"]):
            self._allocate(slot * 2)
        self.slots.append(None)
        self.states.append(State.EJECTED)
        self.generation.append(0)
        self.loads.append(None)
        self._view()
        return slot

    def _allocate(self, rows: int) -> None:
        matrix = np.zeros((len(self.COLUMNS), rows))
        for name, array in zip(self.COLUMNS, matrix, strict=True):
            old = self._arrays.get(name)
            if old is not None:
                array[: len(old)] = old
            self._arrays[name] = array
            self.cells[name] = memoryview(array)  # type: ignore[arg-type]
        first = self.COLUMNS.index(SHARED[0])
        self._shared = matrix[first : first + len(SHARED)]
        self._view()

    def _view(self) -> None:
        for name, array in self._arrays.items():
            setattr(self, name, array[: len(self.slots)])
        self.shared = self._shared[:, : len(self.slots)]

    def _changed(self, slot: int) -> None:
        if len(self.ready) != len(self.slots):
            self.ready = self.mask(s is State.READY for s in self.states)
        else:
            self.ready[slot] = self.states[slot] is State.READY
        self.version += 1
