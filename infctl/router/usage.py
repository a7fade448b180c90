"""Token counts from the end of an answer."""

from __future__ import annotations

import json
import re
from typing import Any

from infctl.core.events import Usage

_FRAMING = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")


def parse_usage(tail: bytes) -> Usage | None:
    """Token counts from the last `usage` object of an answer's tail, None if there is none.

    An unescaped `"usage":` cannot occur inside a JSON string, so it is a key. Chunk framing may
    fall anywhere in it.
    """
    found = _last_usage(tail) or _last_usage(_FRAMING.sub(b"", tail))
    return usage_of(found) if found else None


def usage_of(found: dict[str, Any]) -> Usage:
    """Token counts of a `usage` object, in the words of either API."""
    details = found.get("prompt_tokens_details") or found.get("input_tokens_details")
    return Usage(
        prompt_tokens=_count(found.get("prompt_tokens", found.get("input_tokens"))),
        completion_tokens=_count(found.get("completion_tokens", found.get("output_tokens"))),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
    )


def _last_usage(tail: bytes) -> dict[str, Any] | None:
    at = tail.rfind(b'"usage":')
    if at < 0:
        return None
    try:
        found, _ = _decode(tail[at + 8 :].decode("latin-1").lstrip())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else None


_decode = json.JSONDecoder().raw_decode
