"""What an emulated engine says."""

from __future__ import annotations

import json

import pytest

from infctl.emulator.text import EOS_GAP, RING, Speech


@pytest.mark.parametrize("width", [1, 4, 7])
def test_tokens_are_plain_and_of_one_width(width: int) -> None:
    speech = Speech(width)
    assert len(speech.tokens) == RING
    assert {len(token) for token in speech.tokens} == {width}
    text = speech.text.decode("ascii")
    assert json.dumps(text) == f'"{text}"'
    assert " " in text


def test_the_text_is_a_ring() -> None:
    speech = Speech(4)
    assert speech.slice(RING - 1, RING + 2) == [
        speech.tokens[-1],
        speech.tokens[0],
        speech.tokens[1],
    ]
    assert speech.slice(3 * RING + 5, 3 * RING + 8) == speech.tokens[5:8]
    assert len(speech.slice(0, 2 * RING + 1)) == 2 * RING + 1


def test_ends_depend_on_the_position_alone() -> None:
    speech = Speech(4)
    for start in (0, 17, RING - 1, 5 * RING + 3):
        tokens = speech.until_eos(start)
        assert tokens >= 1
        assert tokens == 1 or speech.until_eos(start + 1) == tokens - 1


def test_ends_are_as_far_apart_as_promised() -> None:
    speech = Speech(4)
    position = ends = 0
    while position < RING:
        position += speech.until_eos(position)
        ends += 1
    assert EOS_GAP * 0.7 < RING / ends < EOS_GAP * 1.4
