"""Where a text may be cut so that the tokens of its pieces are the tokens of the whole.

Tokenizers first split a text where words end, and merge nothing across. So two places are safe with
nearly all of them: before a space between two Latin letters, and between a Chinese, Japanese or
Korean character and the punctuation behind it. Whether they are with this one is tried out on mixed
text and on its own vocabulary; a place that is not is not used.

Cuts are taken from the start on, so a longer text has the same pieces as its beginning, but for
the last: of a conversation that grows only the new end has to be tokenised.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Encode = Callable[[list[str]], list[bytes]]
    Starts = Callable[[str], set[int]]

SEGMENT_CHARS = 1024
"""A piece is at least so long: shorter ones would cost more to look up than to tokenise."""

_WORD = r"\u3041-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
_MARK = r"\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"

PLACES = (r"(?<=[A-Za-z])(?= [A-Za-z])", rf"(?<=[{_WORD}])(?=[{_MARK}])")

_ACROSS = (PLACES[0], rf"{PLACES[1]}|\ufffd[{_MARK}]|[{_WORD}]\ufffd")
"""How the text of a token looks that reaches over such a place; it may hold half a character."""

_SAMPLE = (
    "The quick brown fox doesn't jump over 12,345.67 lazy dogs; it'll stay. I'm sure, he said "
    "(twice).\n\n  def f(x):\n\treturn x ** 2  # indented   more\r\nНаука и жизнь a b c, été "
    "naïve co-operate.  路由器，缓存命中率越高。首个令牌！推理服务？ 引擎：停了；好、的。令牌\n"
    'これはテストです、はい。그래요。 emoji 👩‍💻 end\u00a0of line\u3000wide {"a": [1, 2]} <|x|> a'
)
_RANDOM_TOKENS = 600


def find_cuts(
    encode: Encode, starts: Starts, vocabulary: Sequence[str], added: Sequence[str]
) -> re.Pattern[str] | None:
    """The places where this tokenizer's texts may be cut; None where there are none.

    `starts` tells where the pieces begin into which it splits a text before it merges anything.
    `vocabulary` is the text of its tokens, `added` of its added tokens: no cut may fall into one.
    """
    texts = [_SAMPLE, *_drawn(vocabulary)]
    safe = []
    for place, across in zip(map(re.compile, PLACES), map(re.compile, _ACROSS), strict=True):
        split = all({m.start() for m in place.finditer(text)} <= starts(text) for text in texts)
        reach = added if split else (*added, *vocabulary)
        if not any(map(across.search, reach)) and all(_splits(encode, t, place) for t in texts):
            safe.append(place.pattern)
    return re.compile("|".join(safe)) if safe else None


def _drawn(vocabulary: Sequence[str]) -> list[str]:
    """Texts of tokens at random, with places to cut between them."""
    dice = Random(0)
    tokens = dice.choices(vocabulary, k=_RANDOM_TOKENS) if vocabulary else []
    joints = ("", "", "x y", "好。")
    return ["".join(token + dice.choice(joints) for token in tokens), " ".join(tokens)]


def _splits(encode: Encode, text: str, place: re.Pattern[str]) -> bool:
    pieces = place.split(text)
    whole, *parts = encode([text, *pieces])
    return len(pieces) == 1 or b"".join(parts) == whole


def cut(text: str, place: re.Pattern[str] | None) -> list[str]:
    """The pieces of a text."""
    if place is None:
        return [text]
    pieces, start = [], 0
    while found := place.search(text, start + SEGMENT_CHARS):
        pieces.append(text[start : found.start()])
        start = found.start()
    pieces.append(text[start:])
    return pieces
