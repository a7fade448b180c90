import numpy as np
import pytest

from infctl.workload.prefix import hit_ceiling
from infctl_plugins.workloads.code import Code


def test_it_has_the_traces_lengths() -> None:
    requests = list(Code().requests(1, 3000))
    inputs = [r.input_tokens for r in requests]
    outputs = [r.output_tokens for r in requests]
    assert np.quantile(inputs, (0.1, 0.5, 0.9)) == pytest.approx((147, 1469, 5188), rel=0.05)
    assert np.quantile(outputs, (0.5, 0.9)) == pytest.approx((13, 55), rel=0.05)
    assert np.mean(inputs) == pytest.approx(2048, rel=0.03)
    assert np.mean(outputs) == pytest.approx(28, rel=0.06)
    assert hit_ceiling(requests) == 0.0


def test_a_common_head_where_wanted() -> None:
    requests = list(Code(shared_tokens=1024).requests(1, 20))
    assert len({r.prompt[0].id for r in requests}) == 1
    assert all(r.prompt[0].tokens == 1024 and len(r.prompt) == 2 for r in requests)
