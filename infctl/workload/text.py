"""The text of a request: pseudo-words that are a function of the segment ids alone.

Every segment starts with a word that encodes its id (a bijection, so different ids differ within
their first bytes), and goes on with a slice of one fixed block of pseudo-words, which starts where
the id says. ASCII letters and spaces only: JSON needs no escaping, and a byte is a character.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infctl.workload.model import WorkloadRequest

_MASK = (1 << 64) - 1
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TRIPLES = [(a + b + c).encode() for a in _LETTERS for b in _LETTERS for c in _LETTERS]
_HEAD_TRIPLES = 5  # 26**15 > 2**64
_BLOCK_BYTES = 1 << 18
_CONSONANTS = "bcdfghjklmnprstvwz"
_VOWELS = "aeiou"


def mix(value: int) -> int:
    """A bijection of 64 bits that spreads neighbouring values (the splitmix64 finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@cache
def _block() -> bytes:
    syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
    words: list[str] = []
    size = state = 0
    while size < _BLOCK_BYTES:
        state = mix(state + 1)
        count = 1 + state % 4
        picks = ((state >> (8 + 8 * i)) % len(syllables) for i in range(count))
        words.append("".join(syllables[i] for i in picks))
        size += 2 * count + 1
    return " ".join(words).encode()[:_BLOCK_BYTES]


@lru_cache(maxsize=65_536)
def _head(segment_id: int) -> tuple[bytes, int]:
    """The word that names a segment, and where in the block its text goes on."""
    mixed = rest = mix(segment_id & _MASK)
    triples = []
    for _ in range(_HEAD_TRIPLES):
        rest, triple = divmod(rest, len(_TRIPLES))
        triples.append(_TRIPLES[triple])
    return b"".join(triples) + b" ", mixed % _BLOCK_BYTES


def segment_text(segment_id: int, size: int) -> bytes:
    """Exactly `size` bytes of text for a segment; a shorter text is a prefix of a longer one."""
    head, start = _head(segment_id)
    block = _block()
    missing = size - len(head)
    if missing <= 0:
        return head[:size]
    if missing <= _BLOCK_BYTES - start:
        return head + block[start : start + missing]
    tail = block[start:]
    laps = (missing - len(tail)) // _BLOCK_BYTES + 1
    return (head + tail + block * laps)[:size]


def render_bytes(request: WorkloadRequest, bytes_per_token: float) -> bytes:
    """The prompt as ASCII bytes; each segment takes round(tokens × bytes_per_token) of them."""
    return b"".join([segment_text(s.id, round(s.tokens * bytes_per_token)) for s in request.prompt])


def render(request: WorkloadRequest, bytes_per_token: float) -> str:
    """The prompt as text; see render_bytes."""
    return render_bytes(request, bytes_per_token).decode("ascii")
