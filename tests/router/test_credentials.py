"""What is read beside the profile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infctl.errors import InputError, MachineError
from infctl.profile.keyfile import digest
from infctl.profile.model import EngineTls, Routing, Tls
from infctl.router import gate
from infctl.router.credentials import load, signature

from .certificates import Authority

TOKEN = "0123456789abcdef0123456789abcdef"


def secret(file: Path, content: str) -> str:
    file.write_text(content)
    file.chmod(0o600)
    return str(file)


def keys(folder: Path, priority: str) -> Routing:
    entry = f"keys: [{{name: a, sha256: {digest('a')}, priority: {priority}}}]"
    return Routing(keys_file=secret(folder / "keys.yaml", entry))


def test_nothing_named_is_nothing_read() -> None:
    found = load(Routing(), None)
    assert (found.keys, found.server, found.engines, found.token) == (None, None, None, None)
    assert signature(Routing(), None) == ()


def test_a_priority_is_a_class_of_the_profile_or_an_index(tmp_path: Path) -> None:
    for given, index in (("batch", 1), ("interactive", 0), ("1", 1)):
        found = load(keys(tmp_path, given), None).keys
        assert found is not None
        assert [i for _, i in found] == [index]
    with pytest.raises(InputError, match="no priority 7"):
        load(keys(tmp_path, "7"), None)
    with pytest.raises(InputError, match="no priority 'urgent'") as caught:
        load(keys(tmp_path, "urgent"), None)
    assert caught.value.hint == "It has: interactive, batch."


def test_a_token_is_long_and_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    found = load(Routing(), secret(file, f"{TOKEN}\n"))
    assert found.token == gate.digest(TOKEN.encode())
    for bad in ("", TOKEN[:-1], f"{TOKEN} {TOKEN}", f"{TOKEN}é"):
        with pytest.raises(InputError, match="one token") as caught:
            load(Routing(), secret(file, bad))
        assert TOKEN[:-1] not in str(caught.value)
    file.chmod(0o644)
    with pytest.raises(MachineError, match="0644"):
        load(Routing(), str(file))


def test_the_signature_changes_with_any_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("a")
    tls = Tls(cert_file=pair.cert_file, key_file=pair.key_file)
    engine_tls = EngineTls(ca_file=authority.ca_file)
    named = keys(tmp_path, "0").model_copy(update={"tls": tls, "engine_tls": engine_tls})
    token = secret(tmp_path / "token", TOKEN)
    found = load(named, token)
    assert found.server
    assert found.engines
    seen = {signature(named, token)}
    for file in (named.keys_file, pair.cert_file, pair.key_file, authority.ca_file, token):
        assert file is not None
        os.utime(file, ns=(1, len(seen)))
        seen.add(signature(named, token))
    Path(token).unlink()
    seen.add(signature(named, token))
    assert len(seen) == 7
