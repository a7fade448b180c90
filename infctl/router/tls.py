"""TLS: the router's own certificate, its listening socket, and how engines are trusted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from infctl.errors import InputError

if TYPE_CHECKING:
    from infctl.profile.model import EngineTls, Tls
    from infctl.router.server import Server

_PAUSE_S = 0.1


class EngineTrust:
    """What connections to engines at `https://` are made with. Replaced when its files change;
    connections that are open go on."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """What new connections use; without settings, what this machine trusts."""
        if self._context is None:
            self._context = engine_context(None)
        return self._context

    def replace(self, context: ssl.SSLContext | None) -> None:
        """Use another from now on; None for what this machine trusts."""
        self._context = context


def server_context(tls: Tls) -> ssl.SSLContext:
    """A context with the router's certificate. Raises InputError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, tls.cert_file, tls.key_file)
    return context


def engine_context(engine_tls: EngineTls | None) -> ssl.SSLContext:
    """A context that checks engines' certificates and names. Raises InputError."""
    ca_file = engine_tls.ca_file if engine_tls else None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InputError(f"is no file of CA certificates: {_why(error)}", where=ca_file) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if engine_tls and engine_tls.cert_file and engine_tls.key_file:
        _load_certificate(context, engine_tls.cert_file, engine_tls.key_file)
    return context


def _load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    for file in (cert_file, key_file):
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise InputError(f"cannot be read: {_why(error)}", where=file) from error
    try:
        # A password, so that an encrypted key fails instead of asking a terminal for one.
        context.load_cert_chain(cert_file, key_file, password="")
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be used with {key_file}: {_why(error)}",
            where=cert_file,
            hint="Give a PEM certificate chain and its own key, not encrypted.",
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


class AcceptingListener:
    """A listening socket whose connections begin with a handshake, if there is a `context`.

    Connections are accepted here rather than by the loop's server, so that each gets the newest
    certificate, and so that clients which never finish their handshake count as connections.
    Processes that share the socket each accept one at a time.
    """

    def __init__(self, sock: socket.socket, server: Server, context: ssl.SSLContext | None) -> None:
        self.context = context
        self._sock = sock
        self._server = server
        self._handshakes: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._sock.setblocking(False)
        while True:
            try:
                client, _ = await loop.sock_accept(self._sock)
            except OSError:  # no descriptors left, or a client that is gone already
                await asyncio.sleep(_PAUSE_S)
                continue
            if self._full():
                self._server.handler.on_refused(503)
                client.close()
                continue
            task = loop.create_task(self._shake_hands(client))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _full(self) -> bool:
        begun = len(self._handshakes) + len(self._server.connections)
        return begun >= self._server.limits.connections_max

    async def _shake_hands(self, client: socket.socket) -> None:
        limits = self._server.limits
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._server, client, ssl=self.context,
                ssl_handshake_timeout=limits.header_s if self.context else None,
            )  # fmt: skip

    def close(self) -> None:
        """Accept nothing more; what is connected stays."""
        self._task.cancel()
        for task in self._handshakes:
            task.cancel()
        self._sock.close()
