"""Reading trace files. The whole file is checked before anything is sent."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from infctl.errors import InputError
from infctl.workload.formats import AZURE_HEADER, PARSERS, SECONDS_MAX, Format, Row
from infctl.workload.model import WorkloadRequest
from infctl.workload.sampling import Draws

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LINE_BYTES_MAX = 4 << 20
_ROWS_MAX = 2_000_000
_SNIFF_BYTES = 4096
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUANTUM_S_MIN = 0.5
_FORMATS_HINT = (
    "Traces are Mooncake JSONL (timestamp, input_length, output_length, hash_ids), Azure CSV "
    "(TIMESTAMP,ContextTokens,GeneratedTokens) or infctl JSONL (at_s, input_tokens, "
    "output_tokens, segments); see docs/workloads.md."
)


class Trace:
    """A trace file as a workload.

    `quantum_s` is the step its timestamps are rounded to, 0 where they are exact: arrivals are
    spread over it with the seed. `notes` says so, for the result.
    """

    def __init__(self, name: str, format_: Format, rows: list[Row]) -> None:
        self.name = name
        self.format = format_
        self.quantum_s = _quantum_s([row.at_s for row in rows])
        self._rows = rows
        self._start_s = rows[0].at_s

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the trace, in sentences."""
        if not self.quantum_s:
            return ()
        return (
            f"{self.name}: timestamps are rounded to {self.quantum_s:g} s; "
            "arrivals are spread evenly over that step, by the seed.",
        )

    def requests(self, seed: int, limit: int | None = None) -> Iterator[WorkloadRequest]:
        """The first `limit` rows, shifted to start at 0."""
        rows = list(islice(self._rows, limit))
        return iter(sorted(self._requests(rows, seed), key=lambda r: r.at_s))

    def _requests(self, rows: Iterable[Row], seed: int) -> Iterator[WorkloadRequest]:
        draws = Draws(seed, stream=0)
        for row in rows:
            at_s = row.at_s - self._start_s
            if self.quantum_s:
                at_s += self.quantum_s * draws.uniform()
            yield WorkloadRequest(at_s, row.prompt, row.output_tokens, row.session)


def open_trace(path: str | Path) -> Trace:
    """Read and check a trace file. Raises InputError with the file and line at fault."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            return read_trace(stream, str(path))
    except IsADirectoryError as error:
        raise InputError("is a folder, not a trace", where=str(path), hint=_FORMATS_HINT) from error
    except FileNotFoundError as error:
        hint = "Give the path of a trace, or the name of a built-in workload."
        raise InputError("no such trace", where=str(path), hint=hint) from error
    except OSError as error:
        why = error.strerror or str(error)
        stream_hint = None if path.is_file() else "Traces are read from files: save it as one."
        raise InputError(f"cannot be read: {why}", where=str(path), hint=stream_hint) from error


def read_trace(stream: BinaryIO, name: str) -> Trace:
    """Read a trace from a seekable binary stream; `name` stands for it in errors."""
    format_ = _sniff(stream.read(_SNIFF_BYTES), name)
    stream.seek(0)
    parse = PARSERS[format_]
    rows: list[Row] = []
    for number, line in _lines(stream, name):
        if format_ == "azure" and line.strip() == AZURE_HEADER and not rows:
            continue
        where = f"{name}:{number}"
        try:
            row = parse(line, number)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InputError(_reason(error), where=where, hint=_FORMATS_HINT) from error
        _check_order(row, rows, where)
        rows.append(row)
    if not rows:
        raise InputError("holds no requests", where=name, hint=_FORMATS_HINT)
    return Trace(Path(name).name, format_, rows)


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := stream.readline(_LINE_BYTES_MAX + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if len(line) > _LINE_BYTES_MAX:
            raise InputError(f"longer than {_LINE_BYTES_MAX >> 20} MiB", where=f"{name}:{number}")
        if number > _ROWS_MAX:
            raise InputError(f"more than {_ROWS_MAX:,} lines", where=name, hint="Split the trace.")
        if not line.isspace():
            yield number, line


def _sniff(head: bytes, name: str) -> Format:
    if not head.strip():
        raise InputError("is empty", where=name, hint=_FORMATS_HINT)
    if b"\0" in head or head[:2] == b"\x1f\x8b":
        hint = f"Unpack it first. {_FORMATS_HINT}"
        raise InputError("is a binary or compressed file, not a trace", where=name, hint=hint)
    first = head.removeprefix(_BYTE_ORDER_MARK).lstrip().split(b"\n", 1)[0].strip()
    if first.startswith(b"{"):
        return "infctl" if b'"at_s"' in first else "mooncake"
    if first == AZURE_HEADER:
        return "azure"
    raise InputError("is not a trace this program knows", where=f"{name}:1", hint=_FORMATS_HINT)


def _check_order(row: Row, rows: list[Row], where: str) -> None:
    if not rows:
        return
    if row.at_s < rows[-1].at_s:
        late_s = rows[-1].at_s - row.at_s
        hint = "Sort the trace by time."
        raise InputError(f"is {late_s:g} s earlier than the line before", where=where, hint=hint)
    if row.at_s - rows[0].at_s > SECONDS_MAX:
        hint = "Correct its time, or split the trace."
        raise InputError("is more than a year after the first line", where=where, hint=hint)


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, UnicodeDecodeError) or "utf-8" in text.lower():
        return "is not text"
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def _quantum_s(times_s: list[float]) -> float:
    """The step of rounded timestamps: when most lines share theirs with another, the usual
    distance between neighbours."""
    distinct = sorted(set(times_s))
    if len(times_s) < 10 or len(distinct) < 3 or len(distinct) > len(times_s) / 2:
        return 0.0
    gaps = sorted(b - a for a, b in pairwise(distinct))
    usual = gaps[len(gaps) // 2]
    return round(usual, 3) if usual >= _QUANTUM_S_MIN else 0.0
