"""Faults as JSON."""

from __future__ import annotations

import pytest

from infctl.emulator.faults import Fault, parse_fault
from infctl.errors import InputError


def test_defaults() -> None:
    assert parse_fault(b'{"mode":"stall"}') == Fault(mode="stall")
    fault = parse_fault(b'{"mode":"error","status":429,"after_tokens":5,"for_s":2}')
    assert (fault.status, fault.after_tokens, fault.for_s) == (429, 5, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"mode":"other"}',
        b'{"mode":"error","status":302}',
        b'{"mode":"slow","factor":0}',
        b'{"mode":"die","after_tokens":-1}',
        b'{"mode":"stall","for_s":0}',
        b'{"mode":"stall","later":1}',
    ],
)
def test_refusals(text: bytes) -> None:
    with pytest.raises(InputError):
        parse_fault(text)
