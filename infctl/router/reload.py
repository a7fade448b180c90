"""Another profile, or other keys and certificates, for a router that keeps running.

Everything is read and checked before anything changes, off the event loop; what is wrong is
refused as a whole and the old stays in force. Requests in flight keep running.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.errors import InfctlError
from infctl.router import credentials
from infctl.router.keys import Keyring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import BaseModel

    from infctl.core.scheduling import Pipeline
    from infctl.engine import Engine
    from infctl.profile.model import Profile
    from infctl.router.credentials import Credentials
    from infctl.router.discovery import Discovery
    from infctl.router.driver import Router
    from infctl.router.gate import Gate
    from infctl.router.server import Server
    from infctl.router.tls import AcceptingListener

_POLL_S = 1.0


class Loaded(msgspec.Struct, frozen=True):
    """A profile and what it makes of plugins."""

    profile: Profile
    pipeline: Pipeline
    engines: Mapping[str, Engine]


class Reloader:
    """Holds the profile in force. Service fills in what listens: `servers`, the `listeners` that
    speak TLS, and the `gate` of the admin API."""

    def __init__(
        self,
        router: Router,
        discovery: Discovery,
        loaded: Loaded,
        load: Callable[[], Loaded],
        token_file: str | None = None,
    ) -> None:
        self.profile = loaded.profile
        self.servers: list[Server] = []
        self.listeners: list[AcceptingListener] = []
        self.gate: Gate | None = None
        self._router = router
        self._discovery = discovery
        self._load = load
        self._token_file = token_file
        self._lock = asyncio.Lock()
        self._seen: credentials.Signature = ()

    # --- the profile ------------------------------------------------------------------------------

    async def reload(self) -> dict[str, Any]:
        """Read the profile again and go on by it: what changed, and what cannot change while the
        router runs and kept its value. Raises InfctlError if it is refused."""
        async with self._lock:
            loaded, profile, found = await asyncio.to_thread(self._prepare)
            applied = _differences(self.profile, profile)
            kept = _differences(profile, loaded.profile)
            self.profile = profile
            self._router.configure(loaded.pipeline, profile.routing)
            if self._router.recorder is not None:
                self._router.recorder.policy_changed(profile, self._router.now())
            self._discovery.configure(profile.routing.health)
            for server in self.servers:
                server.limits = profile.routing.limits
            self.use(found)
        self._router.telemetry.log(
            "profile_reloaded", applied=",".join(applied), kept=",".join(kept)
        )
        return {"profile": profile.metadata.name, "applied": applied, "kept": kept}

    def _prepare(self) -> tuple[Loaded, Profile, Credentials]:
        loaded = self._load()
        profile = _changeable(self.profile, loaded.profile)
        return loaded, profile, self.read(profile)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Reload, as an answer of the admin API: status and body."""
        try:
            return 200, await self.reload()
        except InfctlError as error:
            self._router.telemetry.log("profile_refused", error=str(error))
            lines = list(getattr(error, "lines", ()))
            words = {"message": error.message, "where": error.where, "hint": error.hint}
            return error.http_status, {"error": words | {"lines": lines}}
        except Exception as error:
            self._router.telemetry.bug("reload", error)
            return 500, {"error": {"message": f"the reload failed: {type(error).__name__}"}}

    # --- keys and certificates --------------------------------------------------------------------

    def read(self, profile: Profile | None = None) -> Credentials:
        """Read and check the files a profile names (default: the one in force); may block.
        Raises InfctlError."""
        profile = profile or self.profile
        routing = profile.routing
        self._seen = credentials.signature(routing, self._token_file)
        return credentials.load(routing, self._token_file)

    def use(self, found: Credentials) -> None:
        """Go by these from now on."""
        router = self._router
        if found.keys is None:
            router.keys = None
        else:
            board = router.peers.keys if router.peers else None
            router.keys = router.keys or Keyring(time.time, board)
            router.keys.replace(found.keys, router.now())
        router.engine_trust.replace(found.engines)
        if found.server is not None:
            for listener in self.listeners:
                listener.context = found.server
        if self.gate is not None and found.token is not None:
            self.gate.expected = found.token

    async def follow_files(self) -> None:
        """Read keys and certificates again when a file changes, until cancelled. What cannot be
        used is logged, and the old stays in force."""
        while True:
            await asyncio.sleep(_POLL_S)
            if credentials.signature(self.profile.routing, self._token_file) != self._seen:
                await self._refresh()

    async def _refresh(self) -> None:
        telemetry = self._router.telemetry
        async with self._lock:
            try:
                self.use(await asyncio.to_thread(self.read))
            except InfctlError as error:
                telemetry.log("credentials_refused", error=str(error))
            else:
                telemetry.log("credentials_reloaded")


def _changeable(old: Profile, new: Profile) -> Profile:
    """The new profile where a running router can follow it: its routing and SLO. Units and models
    are for those who start units; sockets, and whether they speak TLS, are there already."""
    routing = new.routing
    if old.routing.flow.priorities != routing.flow.priorities:  # who waits has its place in one
        kept = routing.flow.model_copy(update={"priorities": old.routing.flow.priorities})
        routing = routing.model_copy(update={"flow": kept})
    if (old.routing.tls is None) != (routing.tls is None):
        routing = routing.model_copy(update={"tls": old.routing.tls})
    return old.model_copy(update={"routing": routing, "slo": new.slo})


def _differences(old: BaseModel, new: BaseModel) -> list[str]:
    """Keys whose values differ, with their path: `routing.limits.idle_s`."""
    return sorted(_differing(old.model_dump(), new.model_dump(), ""))


def _differing(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            yield from _differing(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path
