"""Prompts: how many tokens, and the chained hashes of their blocks.

A token is `bytes_per_token` bytes of text, rounded up at the end; a token of a prompt given as
ids is one id. A block's hash covers the block and everything before it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Sequence

_ID_BYTES = 4


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt's bytes, of which `width` make a token."""

    data: bytes
    width: int
    salt: str = ""

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        return -(-len(self.data) // self.width)

    def followed_by(self, data: bytes, width: int) -> Prompt:
        """This prompt and an answer to it; itself when their tokens differ in size."""
        if width != self.width:
            return self
        return Prompt(self.data + data, width, self.salt)

    def blocks(self, block_size: int, seed: int = 0) -> list[int]:
        """One hash per full block of `block_size` tokens. Another seed, other hashes."""
        size = block_size * self.width
        view = memoryview(self.data)
        value = xxh3_64_intdigest(self.salt.encode(), seed) if self.salt else seed
        hashes = []
        for start in range(0, len(view) - size + 1, size):
            value = xxh3_64_intdigest(view[start : start + size], value)
            hashes.append(value)
        return hashes

    def token_ids(self, start: int = 0, end: int | None = None) -> list[int]:
        """Tokens start … end−1 as integers: their bytes, little-endian."""
        width, data = self.width, self.data
        stop = len(data) if end is None else min(len(data), end * width)
        return [
            int.from_bytes(data[at : at + width], "little")
            for at in range(start * width, stop, width)
        ]


def from_text(text: str, bytes_per_token: int, salt: str = "") -> Prompt:
    """A prompt given as text."""
    return Prompt(text.encode("utf-8", "surrogatepass"), bytes_per_token, salt)


def from_ids(ids: Sequence[int], salt: str = "") -> Prompt:
    """A prompt given as token ids. Raises ValueError for ids that are not unsigned 32-bit."""
    try:
        return Prompt(array("I", ids).tobytes(), _ID_BYTES, salt)
    except (OverflowError, TypeError):
        raise ValueError("token ids must be between 0 and 4294967295") from None
