"""`report.html`: one self-contained page (no network, no library) a person wants to look at."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from infctl.runs.charts import Axis, Series, bar_chart, line_chart
from infctl.runs.figures import (
    FIGURES,
    HEADLINES,
    Figure,
    milliseconds,
    run_name,
    share,
    simulated,
    workload_name,
)
from infctl.runs.page import SCRIPT, STYLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infctl.runs.result import EndpointResult, LengthBucket, Result, RunResult

_COLOURS = 6
_LINES_MAX = 64


def render(result: Result) -> str:
    """The whole page."""
    body = "".join(
        (
            _header(result),
            _headlines(result),
            '<div class="grid2">',
            _card("Time to first token", _CDF_NOTE, _ttft(result)),
            _card("Output over time", "Tokens a second over all endpoints.", _output(result)),
            "</div>",
            _loads(result),
            '<div class="grid2">',
            _card("Prefix hit rate by prompt length", _HIT_NOTE, _hits(result)),
            _card("Median TTFT by prompt length", _LENGTH_NOTE, _lengths(result)),
            "</div>",
            _card("All figures", "", _table(result)),
            _card("Endpoints", "", _endpoints(result)),
            '<div class="grid2">',
            _client(result),
            _card("Setting", "", _setting(result)),
            "</div>",
        )
    )
    title = html.escape(f"infctl {_verb(result)}: {workload_name(result)}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>"
        f'<body><main>{body}</main><div id="tip"></div><script>{SCRIPT}</script></body></html>\n'
    )


_CDF_NOTE = "Share of requests whose first token came within a time. Further left is better."
_HIT_NOTE = "Cached prompt tokens over all prompt tokens, from the engines’ usage."
_LENGTH_NOTE = "Long prompts take longer to compute; what waits behind them does too."


def _verb(result: Result) -> str:
    return "sim" if simulated(result) else "bench"


def _css(index: int) -> str:
    return f"c{index % _COLOURS}"


def _card(title: str, note: str, content: str) -> str:
    note = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return f'<section class="card"><h2>{html.escape(title)}</h2>{note}{content}</section>'


def _header(result: Result) -> str:
    run = result.runs[-1]
    pace = (
        f"{result.concurrency} requests kept open"
        if result.concurrency
        else f"{result.rate_scale:g}× rate"
    )
    facts = [
        workload_name(result),
        f"{run.requests:,} requests",
        pace,
        f"seed {result.seed}",
        "" if simulated(result) else f"{result.speed:g}× speed",
        run.model,
    ]
    chips = "".join(f"<span>{html.escape(fact)}</span>" for fact in facts if fact)
    names = " against ".join(html.escape(run_name(r)) for r in reversed(result.runs))
    failed = "" if result.client.passed else '<p class="alarm">The client’s self-check failed.</p>'
    return (
        f'<header><p class="brand">infctl {_verb(result)}</p><h1>{names}</h1>'
        f'<div class="chips">{chips}</div>{failed}</header>'
    )


def _headlines(result: Result) -> str:
    base, run = result.runs[0], result.runs[-1]
    tiles = [_tile(f, base, run) for f in FIGURES if f.label in HEADLINES]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _tile(figure: Figure, base: RunResult, run: RunResult) -> str:
    value = figure.value(run)
    against = ""
    if run is not base:
        old = figure.value(base)
        against = (
            f'<span class="{figure.verdict(value, old)}">{figure.change(value, old)}</span> '
            f"from <span>{figure.text(old)}</span>"
        )
    return (
        f'<div class="tile"><p>{html.escape(figure.label)}</p>'
        f"<strong>{figure.text(value)}</strong><small>{against}</small></div>"
    )


def _ttft(result: Result) -> str:
    series = [
        Series(run_name(r), _css(i), r.curves.ttft_cdf)
        for i, r in enumerate(result.runs)
        if r.curves.ttft_cdf
    ]
    if not series:
        return _nothing("No request had a first token.")
    low = max(0.1, min(s.points[0][0] for s in series) * 0.9)
    high = max(low * 2, max(s.points[-1][0] for s in series) * 1.05)
    x = Axis("time to first token", low, high, "ms", log=True)
    return line_chart(series, x, Axis("", 0.0, 1.0, "%"), marker=result.slo.ttft_ms)


def _output(result: Result) -> str:
    series = [
        Series(run_name(r), _css(i), r.curves.output_rate)
        for i, r in enumerate(result.runs)
        if r.curves.output_rate
    ]
    return _over_time(series, "tok/s") if series else _nothing("No tokens arrived.")


def _over_time(series: Sequence[Series], unit: str, high: float = 0.0, legend: bool = True) -> str:
    x_high = max(point[0] for s in series for point in s.points)
    y_high = high or 1.05 * max(point[1] for s in series for point in s.points)
    y = Axis("", 0.0, y_high or 1.0, "tok/s" if unit else "")
    return line_chart(series, Axis("seconds (engine time)", 0.0, x_high, "s"), y, legend=legend)


def _loads(result: Result) -> str:
    high = 1.05 * max(
        (p[1] for r in result.runs for e in r.per_endpoint for p in e.running), default=0.0
    )
    cards = [_load(run, high) for run in result.runs]
    return f'<div class="grid2">{"".join(cards)}</div>'


def _load(run: RunResult, high: float) -> str:
    endpoints = run.per_endpoint
    shown = [e for e in endpoints if e.running][:_LINES_MAX]
    title = f"Open requests per endpoint: {run_name(run)}"
    if not shown or not high:
        return _card(title, "", _nothing("Nothing was measured."))
    series = [Series(e.endpoint or run.url, f"e{i % 8}", e.running) for i, e in enumerate(shown)]
    return _card(title, _balance(endpoints), _over_time(series, "", high, legend=False))


def _balance(endpoints: Sequence[EndpointResult]) -> str:
    """How evenly the work was spread, over every endpoint of the fleet."""
    tokens = [e.input_tokens + e.output_tokens for e in endpoints]
    mean = sum(tokens) / len(tokens)
    idle = sum(not e.requests for e in endpoints)
    parts = [f"{len(endpoints):,} endpoint{'s'[: len(endpoints) != 1]}"]
    if idle:
        parts[0] += f", {idle:,} without a request"
    if mean:
        parts.append(f"the busiest served {max(tokens) / mean:.2f}× the mean tokens")
    if len(endpoints) > _LINES_MAX:
        parts.append(f"the first {_LINES_MAX} are drawn")
    return "; ".join(parts) + "."


def _hits(result: Result) -> str:
    found = [
        b.prefix_hit_rate for r in result.runs for b in r.curves.by_length if b.prefix_hit_rate
    ]
    if not found:
        return _nothing("The engine reports no cached tokens.")
    high = min(1.0, 1.1 * max(found))
    return _length_bars(result, Axis("", 0.0, high, "%"), "prefix_hit_rate")


def _lengths(result: Result) -> str:
    found = [b.ttft_ms_p50 for r in result.runs for b in r.curves.by_length if b.ttft_ms_p50]
    if not found:
        return _nothing("No request had a first token.")
    return _length_bars(result, Axis("", 0.0, 1.05 * max(found), "ms"), "ttft_ms_p50")


def _length_bars(result: Result, y: Axis, field: str) -> str:
    buckets = {b.from_tokens: b for r in result.runs for b in r.curves.by_length}
    starts = sorted(buckets)
    bars = []
    for index, run in enumerate(result.runs):
        values = {b.from_tokens: getattr(b, field) for b in run.curves.by_length}
        bars.append((run_name(run), _css(index), [values.get(start) for start in starts]))
    groups = [_length_name(buckets[start]) for start in starts]
    tips = [f" ({buckets[start].requests:,} requests)" for start in starts]
    return bar_chart(groups, bars, "prompt tokens", y, tips)


def _length_name(bucket: LengthBucket) -> str:
    if bucket.to_tokens is None:
        return f">{bucket.from_tokens // 1024}k"
    return f"≤{bucket.to_tokens // 1024}k"


def _table(result: Result) -> str:
    base, *others = result.runs
    heads = "<th></th>" + "".join(f"<th>{html.escape(run_name(r))}</th>" for r in result.runs)
    rows = [_row(figure, base, others) for figure in FIGURES]
    rows.append(_errors_row(result))
    return (
        f'<div class="scroll"><table class="figures"><tr>{heads}</tr>{"".join(rows)}</table></div>'
    )


def _row(figure: Figure, base: RunResult, others: Sequence[RunResult]) -> str:
    """Each change beside its value; below it where the page is narrow."""
    old = figure.value(base)
    cells = f"<td>{html.escape(figure.label)}</td><td>{figure.text(old)}</td>"
    for run in others:
        value = figure.value(run)
        change = f'<i class="{figure.verdict(value, old)}">{figure.change(value, old)}</i>'
        cells += f"<td><span>{figure.text(value)}</span>{change}</td>"
    return f"<tr>{cells}</tr>"


def _errors_row(result: Result) -> str:
    kinds = [
        f"{html.escape(run_name(r))}: {count:,} × {html.escape(kind)}"
        for r in result.runs
        for kind, count in r.errors_by_kind.items()
    ]
    width = 1 + len(result.runs)
    return f'<tr><td colspan="{width}" class="bad">{"<br>".join(kinds)}</td></tr>' if kinds else ""


def _endpoints(result: Result) -> str:
    rows = []
    for index, run in enumerate(result.runs):
        for item in run.per_endpoint[:_LINES_MAX]:
            hit, p50 = share(item.prefix_hit_rate), milliseconds(item.ttft_ms.p50)
            rows.append(
                f'<tr><td><span class="key {_css(index)}">{html.escape(run_name(run))}</span></td>'
                f"<td>{html.escape(item.endpoint or run.url)}</td><td>{item.requests:,}</td>"
                f"<td>{item.errors:,}</td><td>{item.input_tokens:,}</td>"
                f"<td>{item.output_tokens:,}</td><td>{hit}</td><td>{p50}</td></tr>"
            )
    names = ("policy", "endpoint", "requests", "errors", "input tokens", "output tokens")
    heads = "".join(f"<th>{name}</th>" for name in (*names, "hit rate", "TTFT p50"))
    table = (
        f'<div class="scroll"><table class="named"><tr>{heads}</tr>{"".join(rows)}</table></div>'
    )
    return f"<details><summary>{len(rows)} rows</summary>{table}</details>"


def _client(result: Result) -> str:
    if not simulated(result):
        return _card("Is the client to be trusted?", "", _self_check(result))
    text = "Engines, time and clients are simulated; router and policy are those that run live."
    return _card("Simulated", "", f"<p>{text}</p>")


def _self_check(result: Result) -> str:
    word, css = ("Passed", "good") if result.client.passed else ("Failed", "bad")
    reasons = "".join(f"<li>{html.escape(text)}</li>" for text in result.client.reasons)
    rows = "".join(_check_row(run) for run in result.runs)
    heads = "".join(f"<th>{h}</th>" for h in ("", "late p99", "loop lag p99", "bound", "CPU"))
    return (
        f'<p class="{css}"><strong>{word}.</strong></p><ul>{reasons}</ul>'
        f'<div class="scroll"><table><tr>{heads}</tr>{rows}</table></div>'
        '<p class="note">Engine ms. Lateness and event-loop lag may be a tenth of the median '
        "TTFT, and the client may use 0.9 of a core.</p>"
    )


def _check_row(run: RunResult) -> str:
    check = run.client
    late = "–" if check.late_ms_p99 is None else f"{check.late_ms_p99:,.0f} ms"
    return (
        f"<tr><td>{html.escape(run_name(run))}</td><td>{late}</td>"
        f"<td>{check.loop_lag_ms_p99:,.0f} ms</td><td>{check.lag_ms_max:,.0f} ms</td>"
        f"<td>{check.cpu_share:.2f} core</td></tr>"
    )


def _setting(result: Result) -> str:
    run = result.runs[-1]
    slo = f"TTFT ≤ {milliseconds(result.slo.ttft_ms)}, TPOT ≤ {milliseconds(result.slo.tpot_ms)}"
    facts = {
        "Workload": f"{result.workload}, {run.requests:,} requests, {run.input_tokens:,} tokens in",
        "Hit ceiling": f"{share(run.prefix_ceiling)} of the prompt blocks (an infinite cache)",
        "Not sent": f"{run.skipped:,} requests exceed the context" if run.skipped else "",
        "Length": f"{run.duration_s:,.0f} s of engine time, {run.client.wall_s:,.1f} s on the wall",
        "Time": "" if simulated(result) else "every duration is engine time: wall time × speed",
        "SLO": slo,
        "Bytes per token": "" if simulated(result) else f"{run.bytes_per_token:g}",
        "Remarks": " ".join(result.notes),
    }
    rows = "".join(
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>"
        for key, value in facts.items()
        if value
    )
    again = f"<pre>{html.escape(result.command)}</pre>" if result.command else ""
    return f"<dl>{rows}</dl>{again}"


def _nothing(text: str) -> str:
    return f'<p class="nothing">{html.escape(text)}</p>'
