import pytest

from infctl.workload.prefix import hit_ceiling
from infctl_plugins.workloads.tool_agent import ToolAgent


@pytest.mark.parametrize("seed", [0, 5])
def test_it_has_the_published_means_and_cache_ratio(seed: int) -> None:
    requests = list(ToolAgent().requests(seed, 3000))
    count = len(requests)
    assert sum(r.input_tokens for r in requests) / count == pytest.approx(8596, rel=0.03)
    assert sum(r.output_tokens for r in requests) / count == pytest.approx(182, rel=0.03)
    assert hit_ceiling(requests) == pytest.approx(0.59, rel=0.05)
    assert count / requests[-1].at_s == pytest.approx(6.6, rel=0.1)


def test_agents_have_system_prompts_of_their_own() -> None:
    heads = [r.prompt[0].id for r in ToolAgent(agents=4).requests(0, 1000)]
    by_popularity = sorted((heads.count(h) for h in set(heads)), reverse=True)
    assert len(by_popularity) == 4
    assert by_popularity[0] > 1.5 * by_popularity[-1]
