"""What is written is what is read, whatever happened, and wherever it ends."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from infctl.core import events as ev
from infctl.core.commands import Abort, Command, Dispatch, Hedge, Reject, Shed
from infctl.core.eventlog import (
    Ended,
    EventLog,
    Header,
    NotALog,
    Policy,
    Record,
    Records,
    described,
    encoded,
    header_line,
)
from infctl.core.fleet import Endpoint, Load, State
from infctl.core.request import Request, Role

HEADER = Header(
    infctl="1", python="3", numpy="2", machine="m", started="2026-01-01T00:00:00+00:00",
    started_s=10.0, seed=2**63 - 1, speed=2.0, worker=1, shared_slots=64,
    policy=Policy({"metadata": {"name": "t"}}, []),
)  # fmt: skip
REQUEST = Request(
    id="r1", model="m", name="é", prompt_bytes=9, extra_tokens=1, max_tokens=5, tokens=3,
    token_blocks=True, blocks=[2**64 - 4, 8], session="s", stream=True, plain_text=False,
    tenant="t", priority=1, patience_s=0.1, body_bytes=7, follows="f", pinned_to=("u0", 2),
    role=Role.DECODE, prompt_tokens=1.5, output_tokens=float("inf"),
)  # fmt: skip
ENDPOINT = Endpoint(unit="u", url="http://u", models=("m", "n"), generation=3, rank=1, rtt_ms=0.1)
EVENTS: list[Any] = [
    ev.RequestArrived(REQUEST),
    ev.FirstByte("r1"),
    ev.RequestFinished("r1", True, ev.Usage(5, None, 0)),
    ev.RequestCancelled("r1"),
    ev.LegFailed("r1", "why", True, True, 12),
    ev.FirstByteOverdue("r1"),
    ev.HedgeSettled("r1", True),
    ev.Tokenised("r1", 3, [4, 2**63]),
    ev.EndpointJoined(ENDPOINT, State.VERIFYING),
    ev.EndpointLeft("u.1"),
    ev.EndpointChanged("u.1", State.EJECTED),
    ev.LoadReported("u.1", Load(running=1.0, kv_usage=0.1 + 0.2, kv_capacity_tokens=9)),
    ev.PeersReported(np.arange(10.0).reshape(5, 2) / 3.0),
    ev.PrefixesReported([(3, [4, 8], True), (0, [], False)]),
    ev.Tick(),
]
COMMANDS: list[Command] = [
    Dispatch("r1", 2, 1, 3, 0.1 + 0.2, 1e-9),
    Hedge("r1", 2, 1, 3),
    Reject("r1", 429, "full", 3, 1.5, Shed.FULL),
    Abort("r1", 0),
]


def log_of(*happened: tuple[Any, Any], more: bytes = b"") -> bytes:
    records = Records()
    for number, (item, outcome) in enumerate(happened):
        records.begin(10.0 + number / 3, item)
        records.end(outcome)
    return header_line(HEADER) + records.take() + more


def read(data: bytes) -> tuple[list[Record], EventLog]:
    log = EventLog(data)
    return list(log), log


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, ev.PeersReported):
        return isinstance(other, ev.PeersReported) and bool((one.loads == other.loads).all())
    return bool(one == other)


def test_every_event_there_is_passes_unchanged() -> None:
    """A new kind of event has to be added here, and has to be encodable."""
    assert {type(e) for e in EVENTS} == set(get_args(ev.Event))
    found, log = read(log_of(*[(event, []) for event in EVENTS]))
    assert log.header == HEADER
    assert (log.left, log.damage, log.ended) == (0, "", "")
    assert [r.now for r in found] == [10.0 + n / 3 for n in range(len(EVENTS))]
    for event, record in zip(EVENTS, found, strict=True):
        assert equal(event, record.item), record
    state = found[8].item.state  # type: ignore[union-attr]
    assert state is State.VERIFYING


def test_every_field_of_a_request_is_in_it() -> None:
    unset = {
        f.name for f in msgspec.structs.fields(Request) if f.default == getattr(REQUEST, f.name)
    }
    assert unset == set()


def test_every_command_there_is_passes_unchanged() -> None:
    assert {type(c) for c in COMMANDS} == set(get_args(Command))
    (record,), _ = read(log_of((ev.Tick(), COMMANDS)))
    assert record.outcome == encoded(COMMANDS)
    assert "Reject(request_id='r1', status=429" in described(record.outcome)


def test_outcomes_in_words() -> None:
    assert described(encoded([])) == "nothing"
    assert described(encoded("TypeError")) == "the policy raised TypeError"
    assert "cannot be read" in described(b"\xc1")


def test_numbers_beyond_64_bits_come_from_clients_and_engines() -> None:
    arrived = ev.RequestArrived(Request(id="r", model="m", max_tokens=10**30))
    finished = ev.RequestFinished("r", True, ev.Usage(-(10**40)))
    commands: list[Command] = [Dispatch("r", 0, 1, 10**25)]
    found, _ = read(log_of((arrived, commands), (finished, [])))
    assert [r.item for r in found] == [arrived, finished]
    assert found[0].outcome == encoded(commands)
    assert str(10**25) in described(found[0].outcome)


def test_what_no_log_can_hold_is_told_and_leaves_nothing_behind() -> None:
    records = Records()
    records.begin(1.0, ev.FirstByte("a"))
    records.end([])
    before = bytes(records.buffer)
    with pytest.raises(ValueError, match="surrogates"):
        records.begin(2.0, ev.FirstByte("\ud800"))
    assert bytes(records.buffer) == before
    records.begin(2.0, ev.FirstByte("b"))
    with pytest.raises(ValueError, match="surrogates"):
        records.end([Reject("b", 500, "\ud800")])
    assert bytes(records.buffer) == before


def test_policies_and_ends_are_records_too() -> None:
    policy = Policy({"a": [1, 2.5, None, {"b": "c"}]}, [])
    found, log = read(log_of((policy, []), (Ended("full"), [])))
    assert [r.item for r in found] == [policy, Ended("full")]
    assert log.ended == "full"


def test_any_beginning_of_a_log_is_a_log() -> None:
    data = log_of((ev.Tick(), []), (EVENTS[0], COMMANDS))
    whole = [len(header_line(HEADER)), len(log_of((ev.Tick(), []))), len(data)]
    for end in range(whole[0], len(data) + 1):
        found, log = read(data[:end])
        complete = sum(end >= each for each in whole) - 1
        assert (len(found), log.left, log.damage) == (complete, end - whole[complete], "")


def test_damage_is_told_with_its_place() -> None:
    for more in (bytes(20), b"\x01\0\0\0\0\0\0\0\xc1", b"\x02\0\0\0\0\0\0\0\x92\x01"):
        found, log = read(log_of((ev.Tick(), []), more=more))
        assert len(found) == 1
        assert log.damage.startswith("record 2 cannot be read")
        assert log.left == len(more)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin"),
        (b"no log\n", "does not begin"),
        (b"\xff\xfe\n", "does not begin"),
        (b'{"format": "another", "version": 1}\n', "does not begin"),
        (header_line(HEADER)[:-1], "does not begin"),
        (b'{"format": "infctl event log", "version": 99}\n', "format 99"),
        (b'{"format": "infctl event log", "version": 1}\n', "header is damaged"),
    ],
)
def test_what_is_no_log(data: bytes, words: str) -> None:
    with pytest.raises(NotALog, match=words):
        EventLog(data)
