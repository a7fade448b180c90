import html
import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.runs.charts import Axis, Series, bar_chart, label, line_chart

X = Axis("time", 10, 1000, "ms", log=True)
Y = Axis("", 0, 1, "%")


def svg(markup: str) -> ET.Element:
    return ET.fromstring(markup[markup.index("<svg") :])


def test_lines_stay_in_the_box_and_carry_their_data() -> None:
    points = [(1.0, -5.0), (100.0, 0.5), (5000.0, 2.0)]
    chart = line_chart([Series("a<b", "c0", points)], X, Y, marker=100)
    line = svg(chart).find("polyline")
    assert line is not None
    pairs = [tuple(map(float, p.split(","))) for p in line.get("points", "").split()]
    assert all(52 <= x <= 448 and 12 <= y <= 210 for x, y in pairs)
    data = json.loads(html.unescape(re.search(r'data-chart="([^"]*)"', chart).group(1)))
    assert data["series"][0]["name"] == "a<b"
    assert "a<b" not in chart
    assert "SLO" in chart


def test_bars_have_heights_in_proportion_and_tips() -> None:
    bars = [("old", "c0", [0.2, None]), ("new", "c1", [0.4, 0.8])]
    chart = bar_chart(["≤1k", ">1k"], bars, "tokens", Y, ["", " (3)"])
    found = list(svg(chart).iter("rect"))
    heights = [float(r.get("height", 0)) for r in found]
    assert heights == pytest.approx([39.6, 79.2, 0.0, 158.4], abs=0.2)
    assert found[2].get("data-tip") == "old · >1k: not reported (3)"


@given(st.floats(0.1, 1e6), st.floats(1.01, 1e5), st.booleans())
def test_ticks_are_few_and_inside(low: float, factor: float, log: bool) -> None:
    axis = Axis("", low, low * factor, "", log)
    ticks = axis.ticks()
    assert len(ticks) <= 12
    assert all(low - 1e-6 * low <= t <= low * factor * (1 + 1e-6) for t in ticks)


def test_labels() -> None:
    assert [label(v, u) for v, u in ((0.25, "%"), (250, "ms"), (2000, "ms"), (15_000, ""))] == [
        *("25 %", "250 ms", "2 s", "15k")
    ]


def test_labels_of_a_narrow_range_keep_apart() -> None:
    axis = Axis("", 180.0, 2600.0, "ms", log=True)
    chart = line_chart([Series("a", "c0", [(180.0, 0.0), (2600.0, 1.0)])], axis, Y)
    ticks = [t for t in svg(chart).iter("text") if t.get("text-anchor") == "middle"]
    placed = [(float(t.get("x", 0)), len(t.text or "")) for t in ticks if t.get("class") == "tick"]
    assert len(placed) > 2
    for (left, wide), (right, width) in pairwise(placed):
        assert left + wide * 3.2 + 6 < right - width * 3.2
