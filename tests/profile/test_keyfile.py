"""The file of API keys: what it may say, who may read it, and that it is never shown."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infctl.errors import InfctlError, InputError, MachineError
from infctl.profile.keyfile import Key, digest, read, text, when

A, B = digest("a"), digest("b")
PLAIN = "sk-a-key-somebody-put-here-in-clear"


def put(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "keys.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    file.chmod(mode)
    return file


def test_a_key_with_everything(tmp_path: Path) -> None:
    (key,) = read(
        put(
            tmp_path,
            f"""
apiVersion: infctl/v1
kind: Keys
keys:
  - name: team-a
    sha256: {A}
    tenant: acme.eu
    models: [chat, org/model-7b]
    priority: interactive
    requests_per_minute: 600
    tokens_per_minute: 100000
    concurrent_requests: 20
    expires: 2027-01-31T12:00:00Z
""",
        )
    )
    assert (key.name, key.tenant, key.models) == ("team-a", "acme.eu", ["chat", "org/model-7b"])
    assert (key.priority, key.requests_per_minute, key.concurrent_requests) == (
        "interactive",
        600,
        20,
    )
    assert key.expires is not None
    assert when(key.expires) == 1801396800.0


def test_json_and_no_keys_at_all(tmp_path: Path) -> None:
    assert read(put(tmp_path, '{"keys": []}')) == []
    (key,) = read(put(tmp_path, f'{{"keys": [{{"name": "a", "sha256": "{A}"}}]}}'))
    assert (key.tenant, key.models, key.priority) == (None, None, 0)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o777, 0o644])
def test_a_file_others_may_open_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=f"{mode:04o}"):
        read(put(tmp_path, "keys: []", mode))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none"):
        with pytest.raises(MachineError):
            read(file)
    os.mkfifo(tmp_path / "pipe", 0o600)
    opened = os.open(tmp_path / "pipe", os.O_RDWR)  # so that opening it to read does not wait
    with pytest.raises(MachineError, match="not a file"):
        read(tmp_path / "pipe")
    os.close(opened)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("keys: [", "YAML"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("- a", "mapping|dictionary|KeyFile"),
        ("key: []", "key"),
        ("kind: Profile", "Keys"),
        ("keys: [{name: a}]", "keys.0..sha256: Field required"),
        (f"keys: [{{name: a, sha256: {A[:-1]}}}]", "sha256"),
        (f"keys: [{{name: a, sha256: {A.upper()}}}]", "sha256"),
        (f"keys: [{{name: A B, sha256: {A}}}]", "name"),
        (f"keys: [{{name: a, sha256: {A}, tenant: 'a b'}}]", "tenant"),
        (f"keys: [{{name: a, sha256: {A}, models: []}}]", "models"),
        (f"keys: [{{name: a, sha256: {A}, requests_per_minute: 0}}]", "requests_per_minute"),
        (f"keys: [{{name: a, sha256: {A}, requests_per_minute: 1.5}}]", "requests_per_minute"),
        (f"keys: [{{name: a, sha256: {A}, tokens_per_minute: many}}]", "tokens_per_minute"),
        (f"keys: [{{name: a, sha256: {A}, expires: soon}}]", "is no time"),
        (f"keys: [{{name: a, sha256: {A}, colour: red}}]", "colour"),
        (f"keys: [{{name: a, sha256: {A}, name: b}}]", "twice"),
        (f"keys:\n- {{name: a, sha256: {A}}}\n- {{name: a, sha256: {B}}}", ":3: .*this name"),
        (f"keys:\n- {{name: a, sha256: {A}}}\n- {{name: b, sha256: {A}}}", ":3: .*this digest"),
        ("keys: !!python/object/apply:os.system [id]", "tag"),
    ],
)
def test_what_is_wrong_is_told_and_where(content: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(put(tmp_path, content))
    assert "keys.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        f"{{name: a, sha256: {PLAIN}}}",
        f"{{name: '{PLAIN}!', sha256: {A}}}",
        f"{{name: a, sha256: {A}, tenant: '{PLAIN} x'}}",
        f"{{name: a, sha256: {A}, expires: {PLAIN}}}",
        f"{{name: a, sha256: {A}, tokens_per_minute: {PLAIN}}}",
        f"{{name: a, sha256: !!int {PLAIN}}}",
        PLAIN,
    ],
)
def test_a_key_written_in_clear_is_not_repeated_in_the_error(entry: str, tmp_path: Path) -> None:
    with pytest.raises(InfctlError) as caught:
        read(put(tmp_path, f"keys: [{entry}]"))
    shown = f"{caught.value} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert PLAIN not in str(caught.value)
    assert caught.value.__cause__ is None, shown


KEYS = st.builds(
    Key,
    name=st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\Z"),
    sha256=st.binary().map(lambda b: digest(b.hex())),
    tenant=st.none() | st.from_regex(r"\A[A-Za-z0-9._:@-]{1,20}\Z"),
    priority=st.integers(0, 100) | st.sampled_from(["batch", "on", "1"]),
    requests_per_minute=st.none() | st.integers(1, 10**9),
    expires=st.none() | st.just("2027-01-31"),
)


@given(keys=st.lists(KEYS, max_size=5, unique_by=(lambda k: k.name, lambda k: k.sha256)))
def test_what_is_written_is_what_was_meant(
    keys: list[Key], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    for as_json in (False, True):
        assert read(put(folder, text(keys, as_json))) == keys


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (f'{{"name": "a", "name": "b", "sha256": "{A}"}}', "twice"),
        (f'{{"name": "a", "sha256": "{A}"}}, {{"name": "a", "sha256": "{B}"}}', "this name"),
        (f'{{"name": "a", "sha256": "{A}"}}, {{"name": "b", "sha256": "{A}"}}', "this digest"),
        (f'{{"name": "a", "sha256": "{PLAIN}"}}', "sha256"),
        ('{"name": "a"', "YAML"),
        ("[" * 10_000, "nested"),
    ],
)
def test_json_is_looked_at_as_closely(entries: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(put(tmp_path, f'{{"keys": [{entries}]}}'))
    assert PLAIN not in str(caught.value)


def test_ten_thousand_keys_are_read_in_no_time(tmp_path: Path) -> None:
    keys = [Key(name=f"k{i}", sha256=digest(str(i)), models=["a"]) for i in range(10_000)]
    began = time.process_time()
    assert read(put(tmp_path, text(keys, as_json=True))) == keys
    assert time.process_time() - began < 2.0  # with the place of each key it takes eight


def test_bounds_are_strict() -> None:
    with pytest.raises(ValidationError):
        Key.model_validate({"name": "a", "sha256": A, "concurrent_requests": True})
