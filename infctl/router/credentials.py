"""What the router reads from files beside its profile: API keys, certificates, the admin token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from infctl.errors import InputError
from infctl.profile.keyfile import read, read_secret
from infctl.router.gate import TOKEN_MIN, digest
from infctl.router.tls import engine_context, server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from infctl.profile.keyfile import Key
    from infctl.profile.model import Routing


class Credentials(msgspec.Struct, frozen=True):
    """All of it, read and checked. None where there is none: no keys means that no client needs
    one. Keys come with the index of their priority class; of the token only a digest is kept."""

    keys: list[tuple[Key, int]] | None
    server: ssl.SSLContext | None
    engines: ssl.SSLContext | None
    token: bytes | None


def load(routing: Routing, token_file: str | None) -> Credentials:
    """Read every file. Raises InputError, MachineError."""
    return Credentials(
        keys=_keys(routing.keys_file, routing.flow.priorities) if routing.keys_file else None,
        server=server_context(routing.tls) if routing.tls else None,
        engines=engine_context(routing.engine_tls) if routing.engine_tls else None,
        token=_token(Path(token_file)) if token_file else None,
    )


def _keys(file: str, classes: Sequence[str]) -> list[tuple[Key, int]]:
    return [(key, _priority(key, classes, file)) for key in read(Path(file))]


def _priority(key: Key, classes: Sequence[str], file: str) -> int:
    if isinstance(key.priority, int) and key.priority < len(classes):
        return key.priority
    if key.priority not in classes:
        raise InputError(
            f"key {key.name!r}: the profile has no priority {key.priority!r}",
            where=file,
            hint=f"It has: {', '.join(classes)}.",
        )
    return classes.index(str(key.priority))


def _token(file: Path) -> bytes:
    token = read_secret(file).strip()
    if len(token) < TOKEN_MIN or not token.isascii() or len(token.split()) != 1:
        raise InputError(
            f"needs one token of at least {TOKEN_MIN} characters",
            where=str(file),
            hint=f"openssl rand -hex 32 > {file}; chmod 600 {file}",
        )
    return digest(token)


Signature = tuple[tuple[str, tuple[int, int, int] | None], ...]


def signature(routing: Routing, token_file: str | None) -> Signature:
    """Something that differs once one of the files has changed."""
    files = [routing.keys_file, token_file]
    if routing.tls:
        files += [routing.tls.cert_file, routing.tls.key_file]
    if routing.engine_tls:
        engines = routing.engine_tls
        files += [engines.ca_file, engines.cert_file, engines.key_file]
    return tuple((file, _stamp(file)) for file in files if file)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
