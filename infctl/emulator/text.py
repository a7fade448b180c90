"""What an emulated engine says: text that depends on the position in the context alone.

Any engine therefore continues a prompt that ends in another engine's text exactly as that one
would have. The text is a ring of `RING` tokens of plain words; the end of a text is a property of
the position as well, on average every `EOS_GAP` tokens.
"""

from __future__ import annotations

from bisect import bisect_right

RING = 16_384
EOS_GAP = 200
_WORDS = """
the a of to and in is it that was for on are as with his they at be this from have or by one had
not but what all were when we there can an your which their said if do will each about how up
out them then she many some so these would other into has more her two like him see time could
no make than first been its who now people my made over did down only way find use may water
long little very after words called just where most know get through back
"""


class Speech:
    """The ring of tokens, each `bytes_per_token` ASCII characters that JSON leaves as they are."""

    def __init__(self, bytes_per_token: int) -> None:
        width = bytes_per_token
        vocabulary = _WORDS.split()
        words, state, size = [], 1, 0
        while size < RING * width:
            state = _next(state)
            word = vocabulary[state % len(vocabulary)]
            words.append(word)
            size += len(word) + 1
        text = " ".join(words).encode()[: RING * width].ljust(RING * width)
        self.width = width
        self.text = text
        self.tokens = [text[i : i + width] for i in range(0, len(text), width)]
        self._ends = _ends()

    def slice(self, start: int, end: int) -> list[bytes]:
        """The tokens at positions start … end−1."""
        low = start % RING
        if low + end - start <= RING:
            return self.tokens[low : low + end - start]
        return [self.tokens[position % RING] for position in range(start, end)]

    def until_eos(self, start: int) -> int:
        """Tokens from position `start` up to the next end of text; at least one."""
        low = start % RING
        index = bisect_right(self._ends, low)
        return self._ends[index] - low if index < len(self._ends) else self._ends[0] + RING - low


def _ends() -> list[int]:
    state, ends = 7, []
    for position in range(RING):
        state = _next(state)
        if state % EOS_GAP == 0:
            ends.append(position)
    return ends


def _next(state: int) -> int:
    """A step of a 31-bit linear congruential generator, its high bits mixed down."""
    state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return state ^ (state >> 15)
