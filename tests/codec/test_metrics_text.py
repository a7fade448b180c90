"""Reading a few series out of Prometheus text, whatever the text is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.codec.metrics_text import Sample, absent, by_rank, label, scan

SERIES = {"a": ("x:a", "x:old_a"), "b": ("x:b",)}


def test_only_whole_names_are_taken() -> None:
    text = "x:a 1\nx:ab 2\nx:a_total 3\ny:a 4\n# x:a 5\n x:a 6\n"
    assert list(scan(text, ("x:a",))) == [Sample("x:a", "", 1.0)]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('x:a{l="1"} 2.5', 2.5),
        ('x:a{l="}"} 2', 2.0),
        ('x:a{l="a b"} 2 1700000000000', 2.0),
        ("x:a 1e3\r", 1000.0),
        ("x:a{} 0", 0.0),
        ("x:a NaN", None),
        ("x:a +Inf", None),
        ("x:a", None),
        ("x:a{", None),
        ("x:a}{ 1", None),
        ("x:a{} one", None),
    ],
)
def test_values(line: str, value: float | None) -> None:
    found = [s.value for s in scan(line, ("x:a",))]
    assert found == ([] if value is None else [value])


def test_labels() -> None:
    labels = 'my_engine="7",engine="1",model_name="m"'
    assert label(labels, "engine") == "1"
    assert label(labels, "my_engine") == "7"
    assert label(labels, "model_name") == "m"
    assert label(labels, "gine") is None
    assert label("", "engine") is None
    assert label('engine="1', "engine") is None


def test_ranks_names_and_sums() -> None:
    text = (
        'x:old_a{r="0"} 5\nx:a{r="0"} 1\nx:a{r="0",k="2"} 2\nx:old_a{r="1"} 7\n'
        'x:b 9\nx:b{r="x"} 100\nx:b{r="99999"} 100\n'
    )
    assert by_rank(text, SERIES, "r") == {0: {"a": 3.0, "b": 9.0}, 1: {"a": 7.0}}


def test_absent_names() -> None:
    assert absent("x:old_a 1\n", SERIES) == ("x:b",)
    assert absent("", SERIES) == ("x:a", "x:b")


@given(st.text(alphabet='x:ab_ol{}r="0123456789.,\n e-+NnIif# \\', max_size=300))
def test_no_text_is_an_error(text: str) -> None:
    for row in by_rank(text, SERIES, "r").values():
        assert all(math.isfinite(value) for value in row.values())
    assert len(absent(text, SERIES)) <= 2
