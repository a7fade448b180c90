"""One line per request and event."""

from __future__ import annotations

import io
import json

from infctl.router.accesslog import Log, RequestLine

LINE = RequestLine(
    id="r-1", path="/v1/completions", model="m", status=200, endpoint="u0", attempt=1,
    duration_ms=12.5, ttft_ms=3.0, prompt_tokens=7, cached_tokens=4, expected_cached_tokens=5,
    output_tokens=2,
)  # fmt: skip


def logged(fmt: str, *lines: RequestLine) -> str:
    out = io.StringIO()
    log = Log(fmt, out, lambda: 1.5)
    for line in lines:
        log.request(line)
    log.event("endpoint", {"state": "ready", "reason": "two words", "skip": None})
    log.flush()
    return out.getvalue()


def test_a_request_is_one_line_in_either_format() -> None:
    text, event = logged("text", LINE).splitlines()
    assert text == (
        "1.500 request id=r-1 path=/v1/completions model=m status=200 endpoint=u0 attempt=1 "
        "duration_ms=12.5 ttft_ms=3.0 prompt_tokens=7 cached_tokens=4 expected_cached_tokens=5 "
        "output_tokens=2"
    )
    assert event == '1.500 endpoint state=ready reason="two words"'
    row = json.loads(logged("json", LINE).splitlines()[0])
    assert (row["ts"], row["event"], row["ttft_ms"], row["cached_tokens"]) == (1.5, "request", 3, 4)


def test_a_models_name_cannot_forge_a_line() -> None:
    evil = RequestLine(id="r", path="/p", model='x status=500\n2.0 "', status=404)
    assert len(logged("text", evil).splitlines()) == 2
    assert 'model="x status=500\\n2.0 \\""' in logged("text", evil)
    assert json.loads(logged("json", evil).splitlines()[0])["model"] == evil.model


def test_a_flood_is_bounded_and_said() -> None:
    out = io.StringIO()
    log = Log("text", out, lambda: 0.0)
    for _ in range(10_500):
        log.request(LINE)
    log.flush()
    lines = out.getvalue().splitlines()
    assert len(lines) == 10_000
    assert lines[-1] == "0.000 log_overflow lines_dropped=501"


def test_a_closed_log_stops_nothing() -> None:
    out = io.StringIO()
    log = Log("text", out, lambda: 0.0)
    out.close()
    log.request(LINE)
    log.flush()
