"""Prometheus text, read for a few wanted series only.

A scrape of a real engine is 60 to 110 kB of which a router wants ten lines, so lines are chosen
before they are parsed. Whatever cannot be understood is skipped: a scrape is never an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RANKS_MAX = 1024

Series = dict[str, tuple[str, ...]]
"""Our name → the engine's names for it, the preferred one first."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line: a series name, its labels as written, and a finite value."""

    name: str
    labels: str
    value: float


def scan(text: str, names: tuple[str, ...]) -> Iterator[Sample]:
    """The samples of the named series, in the order of the text."""
    wanted = frozenset(names)
    for line in text.split("\n"):
        if line.startswith(names):
            sample = _sample(line)
            if sample is not None and sample.name in wanted:
                yield sample


def label(labels: str, key: str) -> str | None:
    """The value of one label, or None."""
    start = 0 if labels.startswith(f'{key}="') else labels.find(f',{key}="') + 1
    if not start and not labels.startswith(f'{key}="'):
        return None
    start += len(key) + 2
    end = labels.find('"', start)
    return labels[start:end] if end >= 0 else None


def by_rank(
    text: str, series: Mapping[str, tuple[str, ...]], rank_label: str
) -> dict[int, dict[str, float]]:
    """Values per data-parallel rank and our name; series without the label belong to rank 0.

    Several samples of one series and rank are added up. Of alternative names the first that is
    present counts. A name the text lacks is absent from the result.
    """
    sums: dict[int, dict[str, float]] = {}
    for sample in scan(text, tuple(n for names in series.values() for n in names)):
        rank = _rank(sample.labels, rank_label)
        if rank is not None:
            row = sums.setdefault(rank, {})
            row[sample.name] = row.get(sample.name, 0.0) + sample.value
    return {rank: _named(row, series) for rank, row in sums.items()}


def absent(text: str, series: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The preferred names of the series the text has under none of their names."""
    present = {s.name for s in scan(text, tuple(n for names in series.values() for n in names))}
    return tuple(names[0] for names in series.values() if present.isdisjoint(names))


def _named(row: dict[str, float], series: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    found = {}
    for ours, names in series.items():
        name = next((n for n in names if n in row), None)
        if name is not None:
            found[ours] = row[name]
    return found


def _rank(labels: str, rank_label: str) -> int | None:
    text = label(labels, rank_label)
    if text is None or text == "":
        return 0
    return int(text) if text.isascii() and text.isdigit() and int(text) < _RANKS_MAX else None


def _sample(line: str) -> Sample | None:
    opening, closing = line.find("{"), line.rfind("}")
    if 0 <= opening < closing:
        name, labels, rest = line[:opening], line[opening + 1 : closing], line[closing + 1 :]
    elif opening >= 0 or closing >= 0:
        return None
    else:
        name, _, rest = line.partition(" ")
        labels = ""
    try:
        value = float(rest.split()[0])
    except (ValueError, IndexError):
        return None
    finite = value - value == 0
    return Sample(name, labels, value) if finite else None
