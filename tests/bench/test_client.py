import json
from pathlib import Path

import pytest

from infctl.bench.client import measure
from infctl.errors import TargetError
from infctl.runs.spec import Measured, Progress, RunSpec


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Twenty requests 10 ms apart, half of each prompt shared."""
    path = tmp_path / "t.jsonl"
    lines = [
        {"at_s": i * 0.01, "output_tokens": 4, "segments": [[1, 100], [10 + i, 100]]}
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


async def run(server, **values: object) -> tuple[Measured, list[Progress]]:
    seen: list[Progress] = []
    spec = RunSpec(url=server.url, **values)  # type: ignore[arg-type]
    return await measure(spec, seen.append), seen


async def test_open_loop_sends_on_time_and_measures(server, trace: str) -> None:
    server.first_s, server.gap_s = 0.03, 0.01
    found, seen = await run(server, workload=trace)
    assert len(found.samples) == 20
    assert [s.error for s in found.samples] == [""] * 20
    by_time = sorted(found.samples, key=lambda s: s.sent_s)
    assert by_time[-1].sent_s == pytest.approx(0.19, abs=0.03)
    for sample in found.samples:
        assert 30 <= sample.ttft_ms < 200
        assert sample.tpot_ms == pytest.approx((sample.e2e_ms - sample.ttft_ms) / 3, abs=0.01)
        assert (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens) == (200, 50, 4)
        assert sample.endpoint in {"e0", "e1"}
    assert found.ticks[-1].tokens == 80
    assert found.negative_ttft == 0
    assert found.prefix_ceiling == 0.0, "100 shared tokens are less than a block of 512"
    assert seen[-1] == Progress(20, 20, 0, 0)


async def test_durations_are_engine_time(server, trace: str) -> None:
    server.first_s = 0.05
    found, _ = await run(server, workload=trace, speed=10.0, rate_scale=0.5)
    assert min(s.ttft_ms for s in found.samples) >= 500
    last_s = max(s.sent_s for s in found.samples)
    assert last_s == pytest.approx(0.38, abs=0.1), "at_s / rate_scale, in engine seconds"


async def test_closed_loop_keeps_n_open(server, trace: str) -> None:
    server.first_s = 0.01
    found, _ = await run(server, workload=trace, concurrency=3)
    assert len(found.samples) == 20
    assert found.connections == 3
    starts = sorted(s.sent_s for s in found.samples)
    assert starts[3] - starts[0] > 0.005, "the fourth waits for one of the first three"


async def test_chat(server, trace: str) -> None:
    found, _ = await run(server, workload=trace, api="chat", limit=5)
    assert {s.output_tokens for s in found.samples} == {4}
    assert {s.error for s in found.samples} == {""}
    assert found.ticks[-1].tokens == 20


async def test_failures_are_counted_not_fatal(server, trace: str) -> None:
    server.mode = "cut"
    found, seen = await run(server, workload=trace)
    assert {s.error for s in found.samples} == {"stream cut off"}
    assert all(s.e2e_ms is None for s in found.samples)
    assert seen[-1].errors == 20


async def test_an_answer_without_a_token_is_an_error(server, trace: str) -> None:
    server.mode = "empty"
    found, seen = await run(server, workload=trace, limit=5)
    assert {s.error for s in found.samples} == {"an answer without a token"}
    assert seen[-1].errors == 5


async def test_a_stalled_stream_times_out(server, trace: str) -> None:
    server.mode = "stall"
    found, _ = await run(server, workload=trace, limit=2, timeout_s=0.2)
    assert {s.error for s in found.samples} == {"timeout"}


async def test_a_run_in_which_everything_fails_stops(server) -> None:
    server.mode = "reset"
    with pytest.raises(TargetError, match="first 100 requests all failed"):
        await run(server, limit=300, rate_scale=1000.0, parameters={"hit_ceiling": 0.1})


async def test_prompts_are_measured_in_the_servers_tokens(server, trace: str) -> None:
    server.bytes_per_token = 1
    found, _ = await run(server, workload=trace, limit=3)
    assert found.bytes_per_token == 1.0
    assert {s.prompt_tokens for s in found.samples} == {200}
