"""The model's complaints in plain words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from infctl.profile.document import parse
from infctl.profile.model import Profile
from infctl.profile.problems import fields_at, mean, of_model, unit_of

BASE = "metadata: {name: x}\nmodels: [{name: m}]\npools: [{name: p}]\n"


def said(text: str) -> list[str]:
    root, _ = parse(BASE + text, "f")
    with pytest.raises(ValidationError) as error:
        Profile.model_validate(root.plain())
    return [f"{p.key}: {p.what}" for p in of_model(error.value, root)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slo: {target: 2}", "slo.target: is 2, but must be at most 1"),
        ("slo: {target: 0}", "slo.target: is 0, but must be more than 0"),
        ("slo: [1]", "slo: needs a mapping of keys and values, not a list"),
        ("slo: ", "slo: needs a mapping of keys and values, not nothing"),
        ("slo: {ttft_ms: true}", "slo.ttft_ms: needs a number (milliseconds), not True"),
        ("routing: {filters: ready}", "routing.filters: needs a list, not 'ready'"),
        ("routing: {filters: [[x]]}", "routing.filters[0]: needs text, not a list"),
        ("routing: {picker: {type: 5}}", "routing.picker.type: needs text, not 5"),
        ("routing: {attempts_max: 2.5}", "routing.attempts_max: needs a whole number, not 2.5"),
        ("routing: {extra_paths: [x]}", "routing.extra_paths[0]: is 'x', but must be a path"),
        ("engine: {env: [a]}", "engine.env: needs a mapping, not a list"),
        ("engine: {version: yes}", "engine.version: needs text, not true (write it in quotes)"),
        ("clusters: []", "clusters: is empty"),
        ("kind: Profil", "kind: is 'Profil', but must be 'Profile' (did you mean Profile?)"),
        ("routing: {limits: {idl_s: 1}}", "routing.limits.idl_s: is no key of a profile (did you"),
    ],
)
def test_words(text: str, expected: str) -> None:
    (found,) = said(text)
    assert found.startswith(expected)


def test_items_are_called_by_name() -> None:
    text = "clusters: [{name: east, rtt_ms: -1}, {rtt_ms: -2}]"
    assert said(text) == [
        "clusters.east.rtt_ms: is -1, but must be at least 0",
        "clusters[1].name: is missing",
        "clusters[1].rtt_ms: is -2, but must be at least 0",
    ]


def test_a_plugin_is_complained_of_once() -> None:
    assert len(said("routing: {scorers: [5, {weight: 1}]}")) == 2


@pytest.mark.parametrize("value", [5, [], {}, None, "x", {"a": {"b": 1}}, [[[]]]])
def test_any_value_anywhere_is_put_into_words(value: Any) -> None:
    import yaml

    for key in Profile.model_fields:
        root, _ = parse(yaml.safe_dump({key: value}), "f")
        with pytest.raises(ValidationError) as error:
            Profile.model_validate(root.plain())
        for problem in of_model(error.value, root):
            assert "pydantic" not in problem.what
            assert "Input should" not in problem.what


def test_fields_at() -> None:
    assert fields_at(("pools", 0, "units")) == {"ready"}
    assert "extends" in fields_at(())
    assert fields_at(("engine", "args")) == set()


def test_mean_and_unit() -> None:
    assert mean("redy", ["ready", "role"]) == " (did you mean ready?)"
    assert mean("zzz", ["ready"]) == ""
    assert (unit_of("ttft_ms"), unit_of("body_mib_max"), unit_of("name")) == (
        "milliseconds",
        "MiB",
        "",
    )
