"""One Prometheus text out of several workers' ones.

Counters and histograms are sums. Gauges of what every worker sees alike (an endpoint's state and
load, the prefix index, which all fill) are the largest; gauges of what each holds are sums.
"""

from __future__ import annotations

from collections.abc import Sequence

_SEEN_BY_ALL = (b"infctl_endpoint_", b"infctl_prefix_index_blocks")


def merged(texts: Sequence[bytes]) -> bytes:
    """The texts of all workers as one; families and labels in the order they first appear."""
    families: dict[bytes, dict[bytes, float]] = {}
    heads: dict[bytes, list[bytes]] = {}
    for text in texts:
        _take(text, families, heads)
    lines: list[bytes] = []
    for name, samples in families.items():
        lines += heads[name]
        lines += [b"%s %s" % (sample, repr(value).encode()) for sample, value in samples.items()]
    return b"\n".join(lines) + b"\n"


def _take(
    text: bytes, families: dict[bytes, dict[bytes, float]], heads: dict[bytes, list[bytes]]
) -> None:
    largest, samples, name = False, dict[bytes, float](), b""
    for line in text.splitlines():
        if line.startswith(b"# HELP "):
            name = line.split(b" ", 3)[2]
            samples = families.setdefault(name, {})
            heads.setdefault(name, [line])
            largest = False
        elif line.startswith(b"# TYPE "):
            largest = line.endswith(b" gauge") and name.startswith(_SEEN_BY_ALL)
            if len(heads[name]) == 1:
                heads[name].append(line)
        elif line:
            key, _, value = line.rpartition(b" ")
            known = samples.get(key)
            new = float(value)
            if known is None:
                samples[key] = new
            else:
                samples[key] = max(known, new) if largest else known + new
