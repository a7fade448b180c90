"""Cutting texts where it changes no token."""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.router import segments

from .tokenizers_made import CORPUS, KINDS, gpt2, llama3, unsplit

Kind = pytest.mark.parametrize("kind", KINDS)


@cache
def parts(kind: Any) -> tuple[Any, ...]:
    made = kind()

    def encode(texts: list[str]) -> list[bytes]:
        batch = made.encode_batch_fast(texts, add_special_tokens=False)
        return [array("I", e.ids).tobytes() for e in batch]

    def starts(text: str) -> set[int]:
        splitter = made.pre_tokenizer
        return {at for _, (at, _) in splitter.pre_tokenize_str(text)} if splitter else set()

    size = made.get_vocab_size(with_added_tokens=False)
    vocabulary = made.decode_batch([[number] for number in range(size)])
    added = [t.content for t in made.get_added_tokens_decoder().values()]
    return encode, starts, vocabulary, segments.find_cuts(encode, starts, vocabulary, added)


def test_which_tokenizers_can_be_cut() -> None:
    assert parts(gpt2)[-1].pattern == parts(llama3)[-1].pattern == "|".join(segments.PLACES)
    assert parts(unsplit)[-1] is None


WORDS = st.sampled_from(
    [
        *" \n\t'.,0Zé。，好𠮷",
        "the",
        " of",
        "n't",
        "'ll",
        "<|end|>",
        "引擎",
        "  ",
        "emoji 🚀",
        *CORPUS,
    ]
)


@Kind
@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(WORDS, max_size=60), noise=st.text(max_size=20))
def test_the_tokens_of_the_pieces_are_the_texts(kind: Any, pieces: list[str], noise: str) -> None:
    encode, *_, place = parts(kind)
    text = noise.join(pieces)
    if place is not None:
        cut = place.split(text)  # at every place, not at one in a thousand characters
        assert "".join(cut) == text
        assert b"".join(encode(cut)) == encode([text])[0]


@Kind
def test_a_longer_text_begins_with_the_same_pieces(kind: Any) -> None:
    place = parts(kind)[-1]
    text = " ".join(CORPUS * 12)
    short, long = segments.cut(text[:9000], place), segments.cut(text, place)
    assert "".join(long) == text
    if place is not None and segments.PLACES[0] in place.pattern:
        assert len(short) > 5
        assert long[: len(short) - 1] == short[:-1]
        assert all(len(piece) >= segments.SEGMENT_CHARS for piece in long[:-1])


def test_no_cut_falls_into_an_added_token() -> None:
    encode, starts, vocabulary, _ = parts(gpt2)
    found = segments.find_cuts(encode, starts, vocabulary, ["<|end of text|>"])
    assert found is not None
    assert found.pattern == segments.PLACES[1]


def test_without_a_place_a_text_is_one_piece() -> None:
    assert segments.cut("a b " * 5000, None) == ["a b " * 5000]
    assert segments.cut("", None) == [""]
