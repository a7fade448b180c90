"""Hashes made from segments must be equal exactly where the texts are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infctl.core.prefix import GRADES, block_hashes
from infctl.sim.prompts import BYTES_PER_TOKEN, engine_blocks, hash_blocks, router_blocks
from infctl.workload.model import Segment, WorkloadRequest
from infctl.workload.text import render_bytes

SEGMENTS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 1500)), min_size=1, max_size=8).map(
    lambda pairs: tuple(Segment(*pair) for pair in pairs)
)


def request(prompt: tuple[Segment, ...], output: int = 1) -> WorkloadRequest:
    return WorkloadRequest(0.0, prompt, output)


def shared(one: list[int], other: list[int]) -> int:
    """How many leading hashes are equal."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


@given(SEGMENTS, SEGMENTS)
def test_routers_see_the_prefixes_that_the_texts_have(
    one: tuple[Segment, ...], other: tuple[Segment, ...]
) -> None:
    texts = [render_bytes(request(p), BYTES_PER_TOKEN) for p in (one, other)]
    real = [block_hashes(text, 7) for text in texts]
    made = [router_blocks(p, 7) for p in (one, other)]
    assert [len(m) for m in made] == [len(r) for r in real]
    assert [m & 3 for m in made[0]] == GRADES[: len(made[0])]
    if one != other and shared(*made) != shared(*real):
        # Texts of segments may happen to be one another's prefix; hashes may only miss that.
        assert shared(*made) < shared(*real)


@given(SEGMENTS, SEGMENTS, st.sampled_from([16, 64, 512]))
def test_engines_see_whole_blocks_of_equal_tokens(
    one: tuple[Segment, ...], other: tuple[Segment, ...], size: int
) -> None:
    blocks = [engine_blocks(request(p), size, own) for own, p in enumerate((one, other))]
    for made, prompt in zip(blocks, (one, other), strict=True):
        assert len(made) == (sum(s.tokens for s in prompt) + 1) // size
    common = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            common += min(a.tokens, b.tokens) if a.id == b.id else 0
            break
        common += a.tokens
    assert shared(*blocks) == common // size


def test_traces_of_blocks_hash_as_any_other_prompt_does() -> None:
    whole = (Segment(1, 512), Segment(2, 512), Segment(3, 100))
    other = (Segment(1, 512), Segment(2, 512), Segment(9, 512))
    assert shared(engine_blocks(request(whole), 512, 0), engine_blocks(request(other), 512, 1)) == 2
    assert len(engine_blocks(request(whole), 512, 0)) == 2


def test_an_answer_has_blocks_of_its_own() -> None:
    prompt = (Segment(1, 100),)
    one, other = (engine_blocks(request(prompt, 60), 32, own) for own in (1, 2))
    assert len(one) == 5
    assert shared(one, other) == 3


def test_hashes_are_as_coarse_as_prefixes_allow() -> None:
    trace = [request((Segment(1, 512), Segment(2, 512), Segment(3, 100)))]
    assert hash_blocks(trace, 16) == 32
    assert hash_blocks(trace, 512) == 1
    odd = [request((Segment(1, 500), Segment(2, 12_000)))]
    assert hash_blocks(odd, 16) == 12
    assert hash_blocks([request((Segment(1, 300),))], 16) == 1
