"""Sockets that are opened, given and left."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infctl.errors import MachineError
from infctl.router.listening import Sockets, is_loopback, printable


def test_a_taken_port_says_which(tmp_path: Path) -> None:
    sockets = Sockets()
    first = sockets.tcp("http", "127.0.0.1", 0)
    first.listen()
    with pytest.raises(MachineError, match="cannot listen") as raised:
        Sockets().tcp("admin-tcp", "127.0.0.1", first.getsockname()[1], "--admin-tcp")
    assert raised.value.where == printable(first)
    assert "--admin-tcp" in str(raised.value.hint)
    sockets.close()


def test_a_unix_socket_is_its_owners_and_replaces_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    path.touch()
    sockets = Sockets()
    sockets.unix("admin", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    sockets.leave()
    assert path.exists()
    with pytest.raises(MachineError, match="cannot open the socket"):
        Sockets().unix("admin", tmp_path / "no" / "a.sock")


def test_what_was_given_and_not_asked_for_is_closed(tmp_path: Path) -> None:
    mine = Sockets()
    metrics = mine.tcp("metrics", "127.0.0.1", 0)
    metrics.listen()
    port = metrics.getsockname()[1]
    given = Sockets({"metrics": metrics.detach()})
    given.close_unused()
    again = Sockets().tcp("metrics", "127.0.0.1", port)
    assert again.getsockname()[1] == port
    again.close()


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:")])
def test_addresses(host: str, text: str) -> None:
    sockets = Sockets()
    try:
        sock = sockets.tcp("http", host, 0)
    except MachineError:
        pytest.skip(f"no {host} here")
    assert printable(sock).startswith(text)
    assert is_loopback(sock)
    sockets.close()
