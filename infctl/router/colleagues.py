"""The other workers of a router, as asked over their own Unix sockets.

Whichever worker gets an admin request or a scrape answers for all of them. A worker that does not
answer in time (stopped, or about to end) is left out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from infctl.router.merge import merged
from infctl.router.stats import EndpointStats, total
from infctl.router.telemetry import Telemetry
from infctl.router.wire import answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infctl.router.driver import Router
    from infctl.router.server import Connection
    from infctl.router.wire import Head

_ANSWER_S = 1.0
_RELOAD_S = 30.0
_ANSWER_BYTES_MAX = 64 << 20
_PAGE_S = 1.0


class Figures(msgspec.Struct, frozen=True):
    """What one endpoint did for one worker's clients (telemetry.EndpointStats)."""

    statuses: dict[int, int]
    failed_legs: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens_per_s: float
    ttfts_ms: list[float]


class WorkerStats(msgspec.Struct, frozen=True):
    """One worker's share of what the admin API shows. `held` are endpoints an operator drained."""

    queued: int = 0
    held: tuple[str, ...] = ()
    endpoints: dict[str, Figures] = {}


class Underway:
    """A request that is answered later (seams.Exchange); its client may leave meanwhile."""

    def client_gone(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Colleagues:
    """Those at `paths`, without the worker `number`, which asks."""

    def __init__(self, paths: Sequence[str], number: int) -> None:
        self._paths = [path for n, path in enumerate(paths) if n != number]
        self._page = (0.0, b"")

    async def ask(self, method: str, target: str, timeout_s: float = _ANSWER_S) -> list[bytes]:
        """The bodies of those who answer 200 in time."""
        work = [_ask(path, f"{method} {target}", timeout_s) for path in self._paths]
        return [body for body in await asyncio.gather(*work) if body is not None]

    async def reload(self) -> int:
        """Have the others read the profile again; returns how many did."""
        return len(await self.ask("POST", "/v1/profile", _RELOAD_S))

    async def stats(self) -> list[WorkerStats]:
        """Everybody else's figures."""
        bodies = await self.ask("GET", "/v1/worker/stats")
        return [msgspec.json.decode(body, type=WorkerStats) for body in bodies]

    async def metrics(self, connection: Connection, head: Head, own: bytes) -> None:
        """Answer a scrape with the sum of all workers, at most a second old."""
        connection.exchange = Underway()
        now = asyncio.get_running_loop().time()
        made_at, text = self._page
        if not text or now - made_at > _PAGE_S:
            text = merged([own, *await self.ask("GET", "/v1/worker/metrics")])
            self._page = (now, text)
        data = answer(200, text, content_type=Telemetry.CONTENT_TYPE, close=not head.keep_alive)
        connection.respond(head, data)


async def _ask(path: str, line: str, timeout_s: float) -> bytes | None:
    request = f"{line} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=_ANSWER_BYTES_MAX)
            try:
                writer.write(request.encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, ValueError):
        return None
    return body if head.startswith(b"HTTP/1.1 200") else None


def worker_stats(router: Router, held: Sequence[str]) -> WorkerStats:
    """This worker's figures."""
    endpoints = router.telemetry.endpoints.items()
    return WorkerStats(
        queued=len(router.director.flow),
        held=tuple(held),
        endpoints={name: _figures(stats) for name, stats in endpoints},
    )


def _figures(stats: EndpointStats) -> Figures:
    return Figures(
        statuses=dict(stats.statuses),
        failed_legs=stats.failed_legs,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        output_tokens=stats.output_tokens,
        tokens_per_s=stats.tokens_per_s,
        ttfts_ms=list(stats.ttfts_ms),
    )


def together(own: EndpointStats, name: str, others: Sequence[WorkerStats]) -> EndpointStats:
    """One endpoint's figures, by all workers."""
    if not others:
        return own
    return total([own, *(_stats(o.endpoints, name) for o in others)])


def _stats(endpoints: Mapping[str, Figures], name: str) -> EndpointStats:
    stats, found = EndpointStats(), endpoints.get(name)
    if found is not None:
        stats.statuses.update(found.statuses)
        stats.failed_legs = found.failed_legs
        stats.prompt_tokens, stats.cached_tokens = found.prompt_tokens, found.cached_tokens
        stats.output_tokens, stats.tokens_per_s = found.output_tokens, found.tokens_per_s
        stats.ttfts_ms.extend(found.ttfts_ms)
    return stats
