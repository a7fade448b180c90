import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from infctl.plugin import Workload
from infctl.workload.prefix import hit_ceiling
from infctl.workload.traces import open_trace
from infctl_plugins.workloads.conversation import Conversation

DATA = Path(os.environ.get("INFCTL_DATA") or Path(__file__).parents[3] / "../shared/data")
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
TRACE_INPUT = (964, 2306, 6909, 15_367, 27_367, 39_550, 85_400)
TRACE_OUTPUT = (24, 156, 350, 472, 597, 698, 1119)


@pytest.mark.parametrize(("limit", "seed"), [(1000, 0), (1000, 7), (3000, 1), (12_000, 2)])
def test_it_has_the_traces_lengths_rate_and_ceiling(limit: int, seed: int) -> None:
    requests = list(Conversation().requests(seed, limit))
    inputs = [r.input_tokens for r in requests]
    outputs = [r.output_tokens for r in requests]
    assert len(requests) == limit
    assert np.quantile(inputs, SHARES) == pytest.approx(TRACE_INPUT, rel=0.05)
    assert np.quantile(outputs, SHARES) == pytest.approx(TRACE_OUTPUT, rel=0.05, abs=2)
    assert np.mean(inputs) == pytest.approx(12_035, rel=0.02)
    assert np.mean(outputs) == pytest.approx(343, rel=0.02)
    assert hit_ceiling(requests) == pytest.approx(0.366, rel=0.05)
    assert limit / requests[-1].at_s == pytest.approx(3.4, rel=0.1)


def test_block_0_is_common_and_sessions_grow() -> None:
    requests = list(Conversation().requests(0, 1000))
    assert len({r.prompt[0].id for r in requests}) == 1
    assert {r.prompt[0].tokens for r in requests} == {512}
    turns = [len(r.prompt) - 1 for r in requests]
    assert max(turns) >= 4
    assert 0.3 < sum(t > 1 for t in turns) / len(turns) < 0.5


def test_its_figures_are_the_traces() -> None:
    path = DATA / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here; set INFCTL_DATA")
    requests = list(open_trace(path).requests(0))
    inputs = np.quantile([r.input_tokens for r in requests], SHARES)
    outputs = np.quantile([r.output_tokens for r in requests], SHARES)
    assert inputs == pytest.approx(TRACE_INPUT, rel=0.001, abs=1)
    assert outputs == pytest.approx(TRACE_OUTPUT, rel=0.01, abs=1)
    assert hit_ceiling(requests) == pytest.approx(0.366, abs=0.001)


def test_parameters_are_checked() -> None:
    assert isinstance(Conversation(rate_rps=1.0), Workload)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"rate_rps": 0}, Conversation)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"ceiling": 0.1}, Conversation)
