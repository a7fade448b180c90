"""What is measured, and in which order. Pure.

An **experiment** is a handful of requests sent at set times to an engine that is idle before; its
figures are TTFT and TPOT of each. Every experiment says something that the others do not:

- `lone`: prompts of several lengths, one at a time. Fixed cost and cost per token.
- `cached`: short new texts behind cached prefixes. What context costs.
- `queued`: several prompts at once. What of the fixed cost occupies the engine, and how many
  tokens it computes in a step.
- `decode`: batches of several sizes, short and long contexts. Steps.
- `mixed`: prompts that arrive while others decode. Interference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

Group = Literal["lone", "cached", "queued", "decode", "mixed"]
GROUPS: tuple[Group, ...] = ("lone", "cached", "queued", "decode", "mixed")

_PROMPT_TOKENS_MAX = 8192
_LENGTHS = 7
_BATCHES = (1, 2, 4, 8, 16, 32)
_TOKENS = 48
_MIXED_BATCH = 8
_MIXED_TOKENS = 96
_MIXED_MS = 300.0
_STAGGER_MS = 3.0


class Ask(msgspec.Struct, frozen=True):
    """A request of an experiment: `at_ms` after its start, with `prefix` tokens that are in the
    engine's cache and `new` ones that are not."""

    at_ms: float
    new: int
    output: int
    prefix: int = 0


class Experiment(msgspec.Struct, frozen=True):
    """Requests to an idle engine. Prefixes are put into its cache beforehand."""

    group: Group
    asks: tuple[Ask, ...]


def experiments(context_tokens: int) -> list[Experiment]:
    """Every experiment for an engine with so long a context, the simplest first."""
    longest = min(context_tokens - _TOKENS - 16, _PROMPT_TOKENS_MAX)
    lengths = _spread(max(16, longest // 64), longest, _LENGTHS)
    middle = lengths[len(lengths) // 2]
    found = [Experiment("lone", (Ask(0.0, length, 1),)) for length in lengths]
    found += [Experiment("cached", (ask,)) for ask in _cached(longest)]
    for count in (2, 4, 8):
        found.append(Experiment("queued", _together(middle, 1, count)))
        found.append(Experiment("queued", _together(longest, 1, count)))
    found += list(_decode(longest))
    found += [_mixed(length, count) for length, count in ((24, 10), (middle, 6), (longest // 2, 4))]
    return found


def _spread(low: int, high: int, count: int) -> list[int]:
    """Whole numbers from low to high in equal ratios."""
    return sorted({round(low * (high / low) ** (i / (count - 1))) for i in range(count)})


def _cached(longest: int) -> Iterator[Ask]:
    for share in (0.25, 0.5, 0.75):
        prefix = int(longest * share)
        for new in (max(16, longest // 32), longest - prefix):
            yield Ask(0.0, new, 1, prefix)


def _decode(longest: int) -> Iterator[Experiment]:
    for batch in _BATCHES:
        for prompt in (max(16, longest // 64), longest // 2):
            yield Experiment("decode", _together(prompt, _TOKENS, batch))


def _together(new: int, output: int, count: int) -> tuple[Ask, ...]:
    """Requests right after each other. Not at once, for then it is a matter of luck how many of
    them an engine's first step takes up."""
    return tuple(Ask(_STAGGER_MS * i, new, output) for i in range(count))


def _mixed(length: int, count: int) -> Experiment:
    """A batch decodes; prompts come one after another."""
    batch = _together(32, _MIXED_TOKENS, _MIXED_BATCH)
    every_ms = _MIXED_MS / count
    prompts = (Ask(every_ms * (i + 1), length, 1) for i in range(count))
    return Experiment("mixed", (*batch, *prompts))
