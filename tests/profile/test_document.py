"""YAML to located values: places, refusals, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.profile.document import Unreadable, Where, dotted, parse


def problems(text: str) -> list[str]:
    return [str(p) for p in parse(text, "f.yaml")[1]]


def unreadable(text: str) -> str:
    with pytest.raises(Unreadable) as error:
        parse(text, "f.yaml")
    return str(error.value)


def test_values_know_their_line() -> None:
    root, found = parse("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "f.yaml")
    assert found == []
    assert root.plain() == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert root.at(("a", "b")) == Where("f.yaml", 2)
    assert root.at(("a", "c", 1, "y")) == Where("f.yaml", 5)
    assert root.at(("a", "nothing", "here")) == Where("f.yaml", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0x10", 16),
        ("1.5", 1.5),
        ("1e-5", 1e-5),
        ("2E3", 2000.0),
        ("true", True),
        ("~", None),
        ("2024-05-01", "2024-05-01"),
        ("'1'", "1"),
        ("0.5.23", "0.5.23"),
        ("!!str 1", "1"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    root, found = parse(f"k: {text}", "f.yaml")
    assert found == []
    assert root.plain() == {"k": value}
    assert type(root.plain()["k"]) is type(value)


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system", "!!python/name:os.system", "!custom", "!!binary", "!!set"],
)
def test_tags_are_refused_and_run_nothing(tag: str) -> None:
    body = "{a: b}" if tag == "!!set" else '["touch /tmp/infctl-owned"]' if "apply" in tag else "x"
    (problem,) = problems(f"ok: 1\nslo: {tag} {body}\n")
    assert problem.startswith(f"f.yaml:2: slo: has the tag {tag.split('[')[0]}")


def test_duplicate_keys_are_all_found() -> None:
    assert problems("a: 1\nb: {c: 1, c: 2}\na: 3\n") == [
        "f.yaml:2: b.c: is here twice (first on line 2)",
        "f.yaml:3: a: is here twice (first on line 1)",
    ]


def test_keys_must_be_text() -> None:
    assert problems("a: {1: x}\n? [b]\n: 2\n") == [
        "f.yaml:1: a: has the key 1, which is no text: write it in quotes",
        "f.yaml:2: has a list or a mapping as a key: keys are text",
    ]


def test_numbers_must_be_finite_and_readable() -> None:
    assert problems("a: .inf\nb: .nan\n") == [
        "f.yaml:1: a: needs a finite number",
        "f.yaml:2: b: needs a finite number",
    ]
    assert "cannot be read as a number" in problems("a: " + "9" * 5000)[0]


def test_merge_keys_yield_to_the_mapping_itself() -> None:
    root, found = parse("x: &x {a: 1, b: 1}\ny: {<<: *x, b: 2}\nz: {<<: [*x, {c: 3}]}\n", "f")
    assert found == []
    assert root.plain()["y"] == {"a": 1, "b": 2}
    assert root.plain()["z"] == {"a": 1, "b": 1, "c": 3}
    assert problems("y: {<<: 1}\n") == ["f.yaml:1: y.<<: needs a mapping, or a list of mappings"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.yaml: is empty"),
        ("# only a comment\n", "f.yaml: is empty"),
        ("a: [1\nb: 2\n", "f.yaml:2: is not valid YAML: while parsing a flow sequence"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: is not valid YAML: expected a single document"),
        ("a: *nothing\n", "f.yaml:1: is not valid YAML: found undefined alias"),
        ("a: \x01\n", "f.yaml: is not text a YAML file can hold"),
        ("[" * 5000, "f.yaml: is nested too deeply"),
        ("a: " + "[" * 70 + "]" * 70, "f.yaml:1: is nested deeper than 64 levels"),
        ("&a [*a]", "f.yaml:1: is nested deeper than 64 levels"),
    ],
)
def test_unreadable(text: str, said: str) -> None:
    assert said in unreadable(text)


def test_alias_bombs_are_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "more than 100,000 values" in unreadable("\n".join(lines))


@given(st.text(max_size=60))
def test_any_text_is_a_document_or_unreadable(text: str) -> None:
    try:
        root, _ = parse(text, "f.yaml")
    except Unreadable:
        return
    root.plain()


def test_dotted() -> None:
    assert dotted(("pools", 0, "units", "ready")) == "pools[0].units.ready"
    assert dotted(()) == ""
