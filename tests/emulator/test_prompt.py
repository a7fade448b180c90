"""Prompts as tokens and block hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.emulator.prompt import from_ids, from_text


def test_tokens_are_rounded_up() -> None:
    assert [from_text("x" * n, 4).tokens for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert from_text("日本", 4).tokens == 2
    assert from_ids([1, 2, 3]).tokens == 3


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(from_text("x" * n, 4).blocks(2)) for n in (7, 8, 15, 16)] == [0, 1, 1, 2]


@given(st.text(max_size=80), st.text(max_size=30), st.text(max_size=30))
def test_equal_hashes_mean_equal_prefixes(shared: str, one: str, other: str) -> None:
    a, b = from_text(shared + one, 4), from_text(shared + other, 4)
    common = 0
    while common < min(len(a.data), len(b.data)) and a.data[common] == b.data[common]:
        common += 1
    pairs = zip(a.blocks(2), b.blocks(2), strict=False)
    equal = [x == y for x, y in pairs]
    full = common // 8
    assert equal[:full] == [True] * len(equal[:full])
    assert not any(equal[full:])


def test_salts_and_seeds_separate() -> None:
    plain = from_text("x" * 64, 4)
    salted = from_text("x" * 64, 4, "s")
    assert not set(plain.blocks(4)) & set(salted.blocks(4))
    assert not set(plain.blocks(4)) & set(plain.blocks(4, seed=1))
    assert plain.blocks(4, seed=1) == plain.blocks(4, seed=1)


def test_token_ids() -> None:
    assert from_ids([7, 8, 9]).token_ids(1, 3) == [8, 9]
    assert from_text("abcde", 4).token_ids() == [0x64636261, 0x65]


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"]])
def test_ids_out_of_range(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        from_ids(ids)
