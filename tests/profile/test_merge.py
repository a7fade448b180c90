"""Layers over layers, `--set`, environment overrides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.profile.document import Located, Where, parse
from infctl.profile.merge import merge, override, override_all

FIELDS = ("apiVersion", "engine", "routing", "pools")


def located(value: Any) -> Located:
    where = Where("test")
    if isinstance(value, dict):
        return Located({k: located(v) for k, v in value.items()}, where)
    if isinstance(value, list):
        return Located([located(v) for v in value], where)
    return Located(value, where)


def merged(below: Any, above: Any) -> Any:
    return merge(located(below), located(above)).plain()


def test_mappings_merge_and_lists_are_replaced() -> None:
    assert merged({"a": {"x": 1, "y": 1}, "l": [1, 2]}, {"a": {"y": 2}, "l": [3]}) == {
        "a": {"x": 1, "y": 2},
        "l": [3],
    }


def test_lists_of_named_items_merge_by_name() -> None:
    below = [{"name": "a", "n": 1, "m": 1}, {"name": "b"}]
    above = [{"name": "c"}, {"name": "a", "n": 2}]
    assert merged(below, above) == [
        {"name": "a", "n": 2, "m": 1},
        {"name": "b"},
        {"name": "c"},
    ]


def test_another_type_replaces_a_mapping() -> None:
    assert merged({"type": "vllm", "args": {"x": 1}}, {"type": "sglang"}) == {"type": "sglang"}
    assert merged({"type": "vllm", "args": {"x": 1}}, {"type": "vllm", "v": 2}) == {
        "type": "vllm",
        "args": {"x": 1},
        "v": 2,
    }
    assert merged({"type": "vllm", "args": {"x": 1}}, {"v": 2}) == {
        "type": "vllm",
        "args": {"x": 1},
        "v": 2,
    }


def test_places_follow_the_values() -> None:
    below, _ = parse("a:\n  x: 1\n  y: 1\n", "below")
    above, _ = parse("\na: {y: 2}\n", "above")
    both = merge(below, above)
    assert both.at(("a", "x")) == Where("below", 2)
    assert both.at(("a", "y")) == Where("above", 2)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_merging_a_value_with_itself_changes_nothing(value: Any) -> None:
    assert merged(value, value) == value


@given(JSON, JSON)
def test_the_upper_layer_wins(below: Any, above: Any) -> None:
    found = merged({"k": below}, {"k": above})["k"]
    if isinstance(above, dict) and isinstance(below, dict):
        assert set(found) == set(above) | set(below)
    else:
        assert found == above


def set_(root: Any, setting: str) -> tuple[Any, list[str]]:
    found, problems = override(located(root), setting)
    return found.plain(), [str(p) for p in problems]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("a.b=2", {"a": {"b": 2}}),
        ("a.c=x", {"a": {"b": 1, "c": "x"}}),
        ("n.e.w=true", {"a": {"b": 1}, "n": {"e": {"w": True}}}),
        ("a=[1, {x: y}]", {"a": [1, {"x": "y"}]}),
        ("a.b=", {"a": {"b": ""}}),
        ("a.b=x=y", {"a": {"b": "x=y"}}),
        ('a."b.c"=1', {"a": {"b": 1, "b.c": 1}}),
        ("a.b='1'", {"a": {"b": "1"}}),
    ],
)
def test_set(setting: str, expected: Any) -> None:
    assert set_({"a": {"b": 1}}, setting) == (expected, [])


def test_set_reaches_list_items_by_name_and_by_number() -> None:
    pools = {"pools": [{"name": "short", "n": 1}, {"name": "long", "n": 1}]}
    assert set_(pools, "pools.long.n=3")[0]["pools"][1] == {"name": "long", "n": 3}
    assert set_(pools, "pools.0.n=3")[0]["pools"][0] == {"name": "short", "n": 3}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("a", "--set a: needs the form a.b.c=VALUE"),
        ("=1", "--set =1: needs the form"),
        ("a..b=1", "--set a..b=1: needs the form"),
        ("a=[1", "is not valid YAML"),
        ("a=!!python/name:os.system x", "has the tag !!python/name:os.system"),
        ("pools.shrt.n=1", "names no item 'shrt' of its list (did you mean short?); there are"),
        ("pools.7.n=1", "names no item '7'"),
    ],
)
def test_set_refusals_change_nothing(setting: str, said: str) -> None:
    root = {"pools": [{"name": "short"}]}
    found, (problem,) = set_(root, setting)
    assert found == root
    assert said in problem


def under(root: Any, environ: dict[str, str], *sets: str) -> tuple[Any, list[str]]:
    found, problems = override_all(located(root), sets, environ, FIELDS)
    return found.plain(), [str(p) for p in problems]


def test_environment_spells_keys_in_capitals() -> None:
    root = {"pools": [{"name": "a-b", "units": {"ready": 1}}], "routing": {"picker": "best"}}
    environ = {
        "INFCTL_SET__ROUTING__PICKER": "round-robin",
        "INFCTL_SET__POOLS__A_B__UNITS__READY": "3",
        "INFCTL_SET__APIVERSION": "x",
        "INFCTL_SET__ENGINE__ENV__OMP_NUM_THREADS": "'1'",
        "INFCTL_SET__ENGINE__ARGS__MAX_NUM_SEQS": "4",
        "INFCTL_VLLM_PYTHON": "unrelated",
    }
    found, problems = under(root, environ)
    assert problems == []
    assert found == {
        "pools": [{"name": "a-b", "units": {"ready": 3}}],
        "routing": {"picker": "round-robin"},
        "apiVersion": "x",
        "engine": {"env": {"OMP_NUM_THREADS": "1"}, "args": {"max_num_seqs": 4}},
    }


def test_the_command_line_comes_after_the_environment() -> None:
    found, _ = under({"a": 1}, {"INFCTL_SET__A": "2"}, "a=3")
    assert found == {"a": 3}


def test_environment_problems_name_the_variable_and_not_its_value() -> None:
    _, (problem,) = under({}, {"INFCTL_SET__A": "[secret"})
    assert problem.startswith("INFCTL_SET__A: is not valid YAML")
    assert "secret" not in problem
