from infctl.workload.model import Segment, WorkloadRequest
from infctl.workload.prefix import PrefixMeter, hit_ceiling


def request(*prompt: tuple[int, int]) -> WorkloadRequest:
    return WorkloadRequest(0.0, tuple(Segment(i, n) for i, n in prompt), 1)


def test_blocks_hit_only_behind_an_equal_prefix() -> None:
    meter = PrefixMeter(512)
    assert meter.add(request((0, 512), (1, 512), (2, 100))) == 0
    assert meter.add(request((0, 512), (1, 512), (3, 100))) == 2
    assert meter.add(request((9, 512), (1, 512))) == 0, "an equal block after another prefix"
    assert (meter.blocks, meter.hits) == (8, 2)


def test_a_whole_repeat_hits_its_partial_block_too() -> None:
    repeat = request((0, 512), (1, 88))
    assert hit_ceiling([repeat, repeat]) == 0.5


def test_shared_tokens_count_by_whole_blocks() -> None:
    meter = PrefixMeter(512)
    meter.add(request((1, 700)))
    assert meter.add(request((1, 700), (2, 800))) == 1


def test_nothing_has_no_ceiling() -> None:
    assert hit_ceiling([]) == 0.0
