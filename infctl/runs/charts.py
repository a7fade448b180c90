"""Charts as inline SVG: lines and grouped bars, with the data for hovering in an attribute. Pure.

One coordinate system: 460 × 250, which stays readable on a phone and fills half a wide page.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40
_CHAR_WIDTH, _LABEL_GAP = 6.5, 10  # of a 12 px sans-serif
Unit = Literal["ms", "s", "%", "tok/s", ""]


class Series(msgspec.Struct, frozen=True):
    """A named line. `css` is its colour class."""

    name: str
    css: str
    points: Sequence[tuple[float, float]]


class Axis(msgspec.Struct, frozen=True):
    """A range with its label, its unit and its scale."""

    label: str
    low: float
    high: float
    unit: Unit = ""
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between low (0) and high (1)."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-9))
        return (value - low) / (high - low) if high > low else 0.0

    def ticks(self) -> list[float]:
        """Round values within the range."""
        return _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high)


def label(value: float, unit: Unit) -> str:
    """A short text for a tick."""
    if unit == "%":
        return f"{value * 100:g} %"
    if unit == "ms":
        return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def line_chart(
    series: Sequence[Series], x: Axis, y: Axis, marker: float | None = None, legend: bool = True
) -> str:
    """Lines over two axes; `marker` draws a vertical line at an x (the SLO)."""
    px, py = _scales(x, y)
    parts = [_grid(x, y, px, py)]
    if marker is not None and x.low < marker < x.high:
        at = px(marker)
        parts.append(
            f'<line class="slo" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{py(y.low):.1f}"/>'
        )
        foot = HEIGHT - BOTTOM - 6
        parts.append(f'<text class="slo-text" x="{at + 4:.1f}" y="{foot}">SLO</text>')
    for item in series:
        path = " ".join(f"{px(a):.1f},{py(b):.1f}" for a, b in item.points)
        parts.append(f'<polyline class="line {item.css}" points="{path}"/>')
    hover = {
        "box": [LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM],
        "x": [x.low, x.high, x.log, x.unit],
        "unit": y.unit,
        "series": [{"name": s.name, "css": s.css, "points": list(s.points)} for s in series],
    }
    data = html.escape(msgspec.json.encode(hover).decode(), quote=True)
    keys = _legend([(s.name, s.css) for s in series]) if legend else ""
    return keys + _svg("".join(parts), f'data-chart="{data}"')


def bar_chart(
    groups: Sequence[str],
    bars: Sequence[tuple[str, str, Sequence[float | None]]],
    x_label: str,
    y: Axis,
    tips: Sequence[str],
) -> str:
    """Grouped bars: `bars` are (name, css, a value per group); `tips` a hint per group."""
    x = Axis(x_label, 0.0, max(1, len(groups)))
    px, py = _scales(x, y)
    parts = [_grid(x, y, px, py, x_ticks=False)]
    width = (px(1) - px(0)) * 0.72 / max(1, len(bars))
    for column, group in enumerate(groups):
        middle = px(column + 0.5)
        parts.append(
            f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 15}" '
            f'text-anchor="middle">{html.escape(group)}</text>'
        )
        for index, (name, css, values) in enumerate(bars):
            left = middle + (index - len(bars) / 2) * width
            tip = f"{name} · {group}: {_exact(values[column], y.unit)}{tips[column]}"
            parts.append(_bar(left, width, py(values[column] or 0.0), py(y.low), css, tip))
    return _legend([(name, css) for name, css, _ in bars]) + _svg("".join(parts), "")


def _bar(left: float, width: float, top: float, bottom: float, css: str, tip: str) -> str:
    return (
        f'<rect class="bar {css}" x="{left:.1f}" y="{top:.1f}" width="{max(1.0, width - 2):.1f}" '
        f'height="{max(0.0, bottom - top):.1f}" rx="2" data-tip="{html.escape(tip, quote=True)}"/>'
    )


def _exact(value: float | None, unit: Unit) -> str:
    if value is None:
        return "not reported"
    return f"{value * 100:.1f} %" if unit == "%" else f"{value:,.0f} {unit}".rstrip()


def _scales(x: Axis, y: Axis) -> tuple[Callable[[float], float], Callable[[float], float]]:
    def px(value: float) -> float:
        return LEFT + min(max(x.share(value), 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    def py(value: float) -> float:
        return HEIGHT - BOTTOM - min(max(y.share(value), 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    return px, py


def _grid(
    x: Axis,
    y: Axis,
    px: Callable[[float], float],
    py: Callable[[float], float],
    x_ticks: bool = True,
) -> str:
    parts = []
    for tick in y.ticks():
        at = py(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">'
            f"{label(tick, y.unit)}</text>"
        )
    for tick in _apart(x.ticks(), px, x.unit) if x_ticks else []:
        parts.append(
            f'<text class="tick" x="{px(tick):.1f}" y="{HEIGHT - BOTTOM + 15}" '
            f'text-anchor="middle">{label(tick, x.unit)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{html.escape(x.label)}</text>"
    )
    return "".join(parts)


def _apart(ticks: Sequence[float], px: Callable[[float], float], unit: Unit) -> list[float]:
    """Ticks whose labels keep clear of the one before."""
    kept: list[float] = []
    free_at = -math.inf
    for tick in ticks:
        half = _CHAR_WIDTH * len(label(tick, unit)) / 2
        if px(tick) - half >= free_at:
            kept.append(tick)
            free_at = px(tick) + half + _LABEL_GAP
    return kept


def _legend(items: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span class="key {css}">{html.escape(name)}</span>' for name, css in items)
    return f'<div class="legend">{keys}</div>'


def _svg(content: str, attributes: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {attributes}>{content}</svg>'


def _linear_ticks(low: float, high: float) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= 5)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values, about six of them: whole decades of a wide range, even steps of a narrow."""
    if high / low < 5:
        return _linear_ticks(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for marks in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**d for d in decades for m in marks if low <= m * 10.0**d <= high]
        if len(ticks) <= 7:
            break
    return ticks
