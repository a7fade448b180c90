"""Requests that wait at the router: bounded, by priority, fair per tenant.

Classes are strict: nothing of a lower class leaves while a higher one can. Within a class, tenants
take turns by deficit round robin on tokens (Shreedhar and Varghese, 1995), so that a tenant with
huge prompts and one with tiny ones get equal shares of the fleet, and one that floods delays
only itself. A *lane* holds the requests that may use the same endpoints; a full lane never blocks
another one. What a full queue sheds is the newest request of the lowest class, of the tenant that
has most waiting there.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Set

    from infctl.core.request import Request

_QUANTUM_TOKENS = 512.0
_SLACK_TOKENS = 1.0
"""Far above rounding errors; what is missing is charged all the same."""

_BYTES_MAX = 1 << 30
"""Of request bodies that wait."""

_LANES_TRIED = 16
"""Looked at per event: a filter may split requests as finely as it likes."""

_RATE_WINDOW_MS = 10_000.0
_RETRY_AFTER_S_MAX = 60


class Held(msgspec.Struct, gc=False):
    """A waiting request: in which lane, what it is charged (tokens of its prompt and its expected
    answer), since when and until when (monotonic ms), and, where endpoints failed it before, which
    attempt comes next and which slots were tried."""

    request: Request
    lane: Hashable
    tokens: float
    since_ms: float
    deadline_ms: float
    attempt: int = 1
    tried: tuple[int, ...] = ()


class _Tenant:
    """One tenant's waiting requests of one class, by lane."""

    __slots__ = ("count", "deficit", "lanes")

    def __init__(self) -> None:
        self.count = 0
        self.deficit = 0.0
        self.lanes: OrderedDict[Hashable, OrderedDict[str, Held]] = OrderedDict()

    def head(self, open_lanes: Set[Hashable]) -> Held | None:
        for lane, queue in self.lanes.items():
            if lane in open_lanes:
                return next(iter(queue.values()))
        return None

    def add(self, held: Held) -> None:
        queue = self.lanes.get(held.lane)
        if queue is None:
            queue = self.lanes[held.lane] = OrderedDict()
        queue[held.request.id] = held
        if held.attempt > 1:
            queue.move_to_end(held.request.id, last=False)
            self.lanes.move_to_end(held.lane, last=False)
            self.deficit += held.tokens
        self.count += 1

    def remove(self, held: Held) -> None:
        queue = self.lanes[held.lane]
        del queue[held.request.id]
        self.count -= 1
        if queue:
            self.lanes.move_to_end(held.lane)
        else:
            del self.lanes[held.lane]

    def newest(self) -> Held:
        return max((next(reversed(q.values())) for q in self.lanes.values()), key=_since)


def _since(held: Held) -> float:
    return held.since_ms


class _Class:
    """The tenants of one priority class, in turn."""

    __slots__ = ("count", "tenants", "tokens", "turns")

    def __init__(self) -> None:
        self.count = 0
        self.tokens = 0.0
        self.tenants: dict[str, _Tenant] = {}
        self.turns: deque[str] = deque()

    def add(self, held: Held) -> None:
        name = held.request.tenant
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = _Tenant()
            self.turns.append(name)
        if held.attempt > 1:
            self.turns.remove(name)
            self.turns.appendleft(name)
        tenant.add(held)
        self.count += 1
        self.tokens += held.tokens

    def remove(self, held: Held) -> None:
        name = held.request.tenant
        tenant = self.tenants[name]
        tenant.remove(held)
        self.count -= 1
        self.tokens = self.tokens - held.tokens if self.count else 0.0
        if not tenant.count:
            del self.tenants[name]
            self.turns.remove(name)

    def next(self, open_lanes: Set[Hashable]) -> Held | None:
        """Whose turn it is among the tenants that have something in an open lane."""
        turns, tenants = self.turns, self.tenants
        heads = {}
        for name in turns:
            head = tenants[name].head(open_lanes)
            if head is not None:
                heads[name] = head
        if not heads:
            return None
        # All the rounds at once in which nobody's deficit would do.
        missing = min(head.tokens - tenants[name].deficit for name, head in heads.items())
        if missing > _SLACK_TOKENS:
            grant = math.ceil(missing / _QUANTUM_TOKENS) * _QUANTUM_TOKENS
            for name in heads:
                tenants[name].deficit += grant
        while True:
            name = turns[0]
            head = heads.get(name)
            if head is not None and head.tokens - tenants[name].deficit <= _SLACK_TOKENS:
                return head
            turns.rotate(-1)

    def charge(self, held: Held) -> None:
        self.tenants[held.request.tenant].deficit -= held.tokens

    def largest(self) -> str:
        """The tenant that has most requests waiting."""
        return max(self.tenants, key=lambda name: self.tenants[name].count)


class _Lane:
    """The waiting requests that may use the same endpoints, and how many of each class."""

    __slots__ = ("counts", "held")

    def __init__(self, classes: int) -> None:
        self.held: OrderedDict[str, Held] = OrderedDict()
        self.counts = [0] * classes


class _Rate:
    """Tokens that leave the queue per ms while something waits, over the last seconds."""

    __slots__ = ("_ms", "_since_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._ms = self._since_ms = 0.0

    def resume(self, now_ms: float) -> None:
        """The first request waits again; the time before does not count."""
        self._since_ms = now_ms

    def add(self, tokens: float, now_ms: float) -> None:
        took_ms = max(now_ms - self._since_ms, 0.0)
        keep = math.exp(-took_ms / _RATE_WINDOW_MS)
        self._tokens = self._tokens * keep + tokens
        self._ms = self._ms * keep + took_ms
        self._since_ms = now_ms

    def per_ms(self, now_ms: float) -> float:
        """Zero before anything has left."""
        return self._tokens / max(self._ms + now_ms - self._since_ms, 1.0)


class FlowControl:
    """The waiting requests of one router, at most `queue_max`, in `classes` priority classes.

    `held` has all of them by request id."""

    def __init__(self, classes: int, queue_max: int) -> None:
        self.queue_max = queue_max
        self._classes = [_Class() for _ in range(classes)]
        self.held: OrderedDict[str, Held] = OrderedDict()
        self._lanes: OrderedDict[Hashable, _Lane] = OrderedDict()
        self._bytes = 0
        self._rate = _Rate()

    def __len__(self) -> int:
        return len(self.held)

    def waiting(self) -> list[tuple[int, float]]:
        """Requests and tokens per class."""
        return [(each.count, each.tokens) for each in self._classes]

    def precedes(self, lane: Hashable, priority: int) -> bool:
        """Whether something of this or a higher class waits in a lane already."""
        found = self._lanes.get(lane)
        return found is not None and any(found.counts[: priority + 1])

    def yields(self, priority: int) -> bool:
        """Whether anything of a lower class waits."""
        return any(each.count for each in self._classes[priority + 1 :])

    def lanes(self) -> list[tuple[Hashable, Request]]:
        """Lanes to try now, each with one of its requests; where there are many, others the next
        time."""
        lanes = self._lanes
        found = [
            (lane, next(iter(entry.held.values())).request)
            for lane, entry in islice(lanes.items(), _LANES_TRIED)
        ]
        if len(lanes) > _LANES_TRIED:
            for lane, _ in found:
                lanes.move_to_end(lane)
        return found

    def offer(self, held: Held) -> list[Held]:
        """Let a request wait; return those that must go for it, perhaps itself. One that was
        dispatched before goes to the front of its class."""
        request = held.request
        if request.body_bytes > _BYTES_MAX or not self.queue_max:
            return [held]
        shed: list[Held] = []
        while len(self.held) >= self.queue_max or self._bytes + request.body_bytes > _BYTES_MAX:
            victim = self._victim(request)
            if victim is None:
                for each in shed:
                    self._insert(each)
                return [held]
            self.remove(victim.request.id)
            shed.append(victim)
        if not self.held:
            self._rate.resume(held.since_ms)
        self._insert(held)
        return shed

    def _insert(self, held: Held) -> None:
        request = held.request
        self.held[request.id] = held
        self._bytes += request.body_bytes
        entry = self._lanes.get(held.lane)
        if entry is None:
            entry = self._lanes[held.lane] = _Lane(len(self._classes))
        entry.held[request.id] = held
        entry.counts[request.priority] += 1
        self._classes[request.priority].add(held)

    def _victim(self, request: Request) -> Held | None:
        """Who is turned away for a request; None: the request itself."""
        for priority in range(len(self._classes) - 1, request.priority, -1):
            if self._classes[priority].count:
                lowest = self._classes[priority]
                return lowest.tenants[lowest.largest()].newest()
        own = self._classes[request.priority]
        if not own.count:
            return None
        largest = own.tenants[own.largest()]
        mine = own.tenants.get(request.tenant)
        # After the swap the other must not be the smaller one, or the two would swap for ever.
        return largest.newest() if largest.count > (mine.count if mine else 0) + 1 else None

    def next(self, open_lanes: Set[Hashable]) -> Held | None:
        """Whose turn it is among those in the given lanes; it keeps waiting until taken."""
        for each in self._classes:
            found = each.next(open_lanes) if each.count else None
            if found is not None:
                return found
        return None

    def take(self, held: Held, now_ms: float) -> None:
        """A request's turn has come: charge its tenant and let it go."""
        self._classes[held.request.priority].charge(held)
        self._rate.add(held.tokens, now_ms)
        self.remove(held.request.id)

    def remove(self, request_id: str) -> Held | None:
        """A request waits no longer; None if it did not wait."""
        held = self.held.pop(request_id, None)
        if held is None:
            return None
        request = held.request
        self._bytes -= request.body_bytes
        entry = self._lanes[held.lane]
        del entry.held[request_id]
        entry.counts[request.priority] -= 1
        if not entry.held:
            del self._lanes[held.lane]
        self._classes[request.priority].remove(held)
        return held

    def expired(self, now_ms: float) -> list[Held]:
        """Let go of everything whose time is up, and return it."""
        late = [h for h in self.held.values() if h.deadline_ms <= now_ms]
        for held in late:
            self.remove(held.request.id)
        return late

    def retry_after_s(self, priority: int, now_ms: float) -> int:
        """When what waits in this class and those above should have left, at the measured rate."""
        ahead = sum(each.tokens for each in self._classes[: priority + 1])
        rate = self._rate.per_ms(now_ms)
        seconds = ahead / rate / 1000.0 if rate else float(_RETRY_AFTER_S_MAX)
        return max(1, min(math.ceil(seconds), _RETRY_AFTER_S_MAX))
