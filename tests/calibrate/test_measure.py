"""What an answer's usage says of what was really measured."""

from __future__ import annotations

import pytest

from infctl.calibrate.measure import _as_counted
from infctl.calibrate.plan import Ask
from infctl.errors import TargetError


def usage(prompt: int, cached: int | None, output: int = 4) -> dict[str, object]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": output, **details}


def test_tokens_are_the_engines() -> None:
    ask = Ask(3.0, new=100, output=4, prefix=500)
    assert _as_counted(ask, usage(612, 480)) == Ask(3.0, 132, 4, 480)


def test_an_engine_without_usage_is_taken_at_its_word() -> None:
    assert _as_counted(Ask(0.0, 100, 4), {}) == Ask(0.0, 100, 4)


def test_cached_prefixes_need_an_engine_that_tells() -> None:
    with pytest.raises(TargetError, match="cached tokens") as raised:
        _as_counted(Ask(0.0, 100, 4, prefix=500), usage(600, None))
    assert "--enable-prompt-tokens-details" in str(raised.value)
