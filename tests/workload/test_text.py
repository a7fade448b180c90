import json
import time

from hypothesis import given
from hypothesis import strategies as st

from infctl.workload.model import Segment, WorkloadRequest
from infctl.workload.text import mix, render, render_bytes, segment_text

ids = st.integers(0, 2**64 - 1)


@given(ids, st.integers(0, 3000))
def test_text_has_the_size_and_needs_no_escaping(segment_id: int, size: int) -> None:
    text = segment_text(segment_id, size)
    assert len(text) == size
    assert json.dumps(text.decode("ascii")) == f'"{text.decode()}"'


@given(ids, ids)
def test_different_ids_differ_within_the_first_bytes(a: int, b: int) -> None:
    same = segment_text(a, 4000)[:15] == segment_text(b, 4000)[:15]
    assert same == (a == b)


@given(ids, st.integers(0, 2000), st.integers(0, 2000))
def test_a_shorter_text_is_a_prefix(segment_id: int, a: int, b: int) -> None:
    short, long = sorted((a, b))
    assert segment_text(segment_id, long).startswith(segment_text(segment_id, short))


def test_a_text_longer_than_the_block_of_words() -> None:
    assert len(segment_text(7, 3 << 20)) == 3 << 20


def test_shared_segments_are_a_shared_prefix_of_exact_length() -> None:
    one = render(WorkloadRequest(0, (Segment(1, 512), Segment(2, 100)), 1), 4)
    two = render(WorkloadRequest(0, (Segment(1, 512), Segment(3, 200)), 1), 4)
    assert (len(one), len(two)) == (612 * 4, 712 * 4)
    assert one[:2048] == two[:2048]
    assert one[2048:2063] != two[2048:2063]


def test_fractional_bytes_per_token_round_by_segment() -> None:
    request = WorkloadRequest(0, (Segment(1, 10), Segment(2, 3)), 1)
    assert len(render_bytes(request, 3.7)) == 37 + 11


def test_mixing_is_a_bijection_on_a_sample() -> None:
    assert len({mix(i) for i in range(10_000)}) == 10_000


def test_rendering_48_kb_is_fast() -> None:
    request = WorkloadRequest(0, tuple(Segment(i, 512) for i in range(24)), 1)
    render_bytes(request, 4)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        render_bytes(request, 4)
        times.append(time.perf_counter() - start)
    assert min(times) < 100e-6
