"""Arguments of a profile as flags."""

from __future__ import annotations

from typing import Any

import pytest

from infctl.codec.flags import flags
from infctl.errors import InputError


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ("--some-flag",)),
        (False, ()),
        (None, ()),
        (3, ("--some-flag", "3")),
        (0.5, ("--some-flag", "0.5")),
        ("x y", ("--some-flag", "x y")),
        ([1, "a"], ("--some-flag", "1", "a")),
        ({"k": [1]}, ("--some-flag", '{"k":[1]}')),
        ([{"k": 1}], ("--some-flag", '[{"k":1}]')),
    ],
)
def test_values(value: Any, words: tuple[str, ...]) -> None:
    assert flags({"some_flag": value}, owned={}) == words


def test_false_is_negated_where_that_exists() -> None:
    assert flags({"a_b": False}, owned={}, negated=lambda name: name == "a_b") == ("--no-a-b",)


@pytest.mark.parametrize("name", ["api_key", "hf_token", "ssl_keyfile_password"])
def test_secrets_stay_off_the_command_line(name: str) -> None:
    with pytest.raises(InputError, match="process list") as caught:
        flags({name: "hunter2"}, owned={})
    assert "hunter2" not in str(caught.value)


def test_refusals_say_where_and_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        flags({"port": 1}, owned={"port": "the other thing"})
    assert caught.value.where == "engine.args.port"
    assert caught.value.hint == "use the other thing"
    with pytest.raises(InputError, match="not an argument name"):
        flags({"a; rm -rf": 1}, owned={})
