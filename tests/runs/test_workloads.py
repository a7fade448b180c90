from pathlib import Path

import pytest

from infctl.errors import InputError
from infctl.runs.spec import RunSpec
from infctl.runs.workloads import Plan, duration_s, fit, is_trace, load_requests


def spec(**values: object) -> RunSpec:
    return RunSpec(url="http://h", **values)  # type: ignore[arg-type]


def plan(given: RunSpec, context_tokens: int | None) -> Plan:
    return fit(given, *load_requests(given), context_tokens)


def test_names_and_paths(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    assert is_trace(str(tmp_path / "plain"))
    assert is_trace("trace.jsonl")
    assert not is_trace("conversation")
    assert not is_trace("acme.workloads:Mine")


def test_a_built_in_workload_has_a_default_limit_and_parameters() -> None:
    requests, notes = load_requests(spec())
    assert (len(requests), notes) == (1000, [])
    slow, _ = load_requests(spec(parameters={"rate_rps": 0.5}, limit=10))
    fast, _ = load_requests(spec(parameters={"rate_rps": 50.0}, limit=10))
    assert slow[-1].at_s > fast[-1].at_s


def test_unknown_workloads_and_parameters() -> None:
    with pytest.raises(InputError, match="conversaton") as caught:
        load_requests(spec(workload="conversaton"))
    assert "conversation" in (caught.value.hint or "")
    with pytest.raises(InputError):
        load_requests(spec(parameters={"speed": 1}))


def test_requests_beyond_the_context_are_skipped_and_counted() -> None:
    found = plan(spec(limit=300), context_tokens=8192)
    assert found.skipped + len(found.requests) == 300
    assert found.skipped > 50
    assert f"{found.skipped} of 300" in found.notes[0]
    assert max(r.input_tokens + r.output_tokens for r in found.requests) <= 8192
    assert plan(spec(limit=300), None).skipped == 0


def test_none_left_is_an_error() -> None:
    with pytest.raises(InputError, match="none of 50"):
        plan(spec(limit=50), context_tokens=100)


def test_a_trace_takes_no_parameters(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"at_s":1,"input_tokens":5,"output_tokens":2}\n' * 3)
    assert len(load_requests(spec(workload=str(trace)))[0]) == 3
    assert len(load_requests(spec(workload=str(trace), limit=2))[0]) == 2
    with pytest.raises(InputError, match="no parameters"):
        load_requests(spec(workload=str(trace), parameters={"a": 1}))


def test_duration_follows_the_rate_scale(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        "".join(f'{{"at_s":{t},"input_tokens":5,"output_tokens":2}}\n' for t in (4, 14))
    )
    assert duration_s(spec(workload=str(trace), rate_scale=2.0)) == 5.0
