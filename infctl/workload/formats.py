"""The lines of trace files: what each format holds, and how a line becomes a row.

Mooncake JSONL (kvcache-ai/Mooncake, FAST'25): `timestamp` (ms), `input_length`, `output_length`,
`hash_ids`: one id per 512 tokens of the prompt, equal ids being equal text after an equal prefix.

Azure CSV (Azure/AzurePublicDataset, 2023): header `TIMESTAMP,ContextTokens,GeneratedTokens`.

Own JSONL: `{"at_s": 0.5, "input_tokens": 1500, "output_tokens": 200, "segments": [[7, 512],
[8, 988]], "session": "a"}`. `at_s` are seconds after the start; `segments` are [id, tokens] pairs
of which equal ids are equal text; without them a prompt shares nothing; `input_tokens` may be left
out where `segments` are given, and must be their sum otherwise; `session` is optional.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from infctl.workload.model import Segment

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_TOKENS = 512
AZURE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
TOKENS_MAX = 10_000_000
SECONDS_MAX = 366 * 86_400
_DIGITS_MAX = 20
_OWN_ID = 1 << 62  # ids of prompts that share nothing lie above those of files

Format = Literal["mooncake", "azure", "infctl"]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]
SegmentId = Annotated[int, msgspec.Meta(ge=0, lt=_OWN_ID)]


class Row(msgspec.Struct, gc=False):
    """One request of a trace; `at_s` as written, not yet shifted to start at 0."""

    at_s: float
    prompt: tuple[Segment, ...]
    output_tokens: int
    session: str = ""


class _Mooncake(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX * 1000)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[SegmentId] = []


class _Own(msgspec.Struct, forbid_unknown_fields=True):
    at_s: Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
    output_tokens: Tokens
    input_tokens: Tokens | None = None
    segments: list[tuple[SegmentId, Tokens]] = []
    session: Annotated[str, msgspec.Meta(max_length=256)] = ""


_mooncake = msgspec.json.Decoder(_Mooncake)
_own = msgspec.json.Decoder(_Own)


def mooncake_row(line: bytes, number: int) -> Row:
    """A Mooncake line; `number` makes an id for a prompt without `hash_ids`."""
    item = _mooncake.decode(line)
    blocks = -(-item.input_length // BLOCK_TOKENS)
    if not item.hash_ids:
        prompt: tuple[Segment, ...] = (Segment(_OWN_ID + number, item.input_length),)
        return Row(item.timestamp / 1000, prompt, item.output_length)
    if len(item.hash_ids) != blocks:
        raise ValueError(
            f"{len(item.hash_ids)} hash_ids, but {item.input_length} tokens "
            f"are {blocks} blocks of {BLOCK_TOKENS}"
        )
    last_tokens = item.input_length - BLOCK_TOKENS * (blocks - 1)
    prompt = (
        *(Segment(i, BLOCK_TOKENS) for i in item.hash_ids[:-1]),
        Segment(item.hash_ids[-1], last_tokens),
    )
    return Row(item.timestamp / 1000, prompt, item.output_length)


def own_row(line: bytes, number: int) -> Row:
    """A line of our own format; `number` makes an id for a prompt without segments."""
    item = _own.decode(line)
    total = sum(tokens for _, tokens in item.segments)
    tokens = total if item.input_tokens is None else item.input_tokens
    if item.segments and tokens != total:
        raise ValueError(f"input_tokens is {tokens}, but the segments add up to {total}")
    if not tokens:
        raise ValueError("needs input_tokens, or segments")
    if tokens > TOKENS_MAX:
        raise ValueError(f"the segments add up to {tokens:,} tokens; at most {TOKENS_MAX:,}")
    pairs = item.segments or [(_OWN_ID + number, tokens)]
    return Row(item.at_s, tuple(Segment(*p) for p in pairs), item.output_tokens, item.session)


def azure_row(line: bytes, number: int) -> Row:
    """A CSV line: timestamp, prompt tokens, output tokens."""
    fields = line.decode("ascii").strip().split(",")
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields, expected {AZURE_HEADER.decode()}")
    at_s = _seconds(fields[0])
    context, generated = (_tokens(text) for text in fields[1:])
    return Row(at_s, (Segment(_OWN_ID + number, context),), generated)


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a time like 2023-11-16 18:15:46.68") from error
    return (moment.replace(tzinfo=None) - datetime(2000, 1, 1)).total_seconds()


def _tokens(text: str) -> int:
    digits = text.strip()
    value = int(digits) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else 0
    if not 0 < value <= TOKENS_MAX:
        raise ValueError(f"{digits[:40]!r} tokens; expected 1 to {TOKENS_MAX:,}")
    return value


PARSERS: dict[Format, Callable[[bytes, int], Row]] = {
    "mooncake": mooncake_row,
    "azure": azure_row,
    "infctl": own_row,
}
