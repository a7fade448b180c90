"""The command line of an emulated engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from infctl.emulator.faults import Fault, parse_fault
from infctl.errors import InputError, UsageError
from infctl.replica import ReplicaOptions
from infctl.timing import TimingModel

if TYPE_CHECKING:
    from collections.abc import Sequence

DIALECTS = ("vllm", "sglang")


class EmulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One emulated engine. Durations are engine time: wall time × `speed`."""

    model: str
    timing: TimingModel
    replica: ReplicaOptions = ReplicaOptions()
    aliases: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    speed: float = 1.0
    dialect: str = "vllm"
    context_tokens: int = 131_072
    bytes_per_token: int = 4
    stream_interval: int = 1
    startup_s: float = 0.0
    event_port: int = 0
    event_replay_port: int = 0
    seed: int = 0
    fault: Fault | None = None


def parse_options(argv: Sequence[str]) -> EmulatorOptions:
    """Options from a command line. Raises UsageError or InputError."""
    args = _parser().parse_args(argv)
    timing = _timing_json(args.timing_json) if args.timing_json else _timing(args.timing)
    replica = ReplicaOptions(
        block_size=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        kv_capacity_tokens=args.kv_capacity_tokens or timing.kv_capacity_tokens,
        prefix_caching=args.enable_prefix_caching,
        record_events=args.event_port > 0,
    )
    _check(args, replica)
    return EmulatorOptions(
        timing=timing,
        replica=replica,
        aliases=tuple(args.alias),
        fault=parse_fault(args.fault.encode()) if args.fault else None,
        **{name: getattr(args, name) for name in _PLAIN},
    )


_PLAIN = (
    "model",
    "host",
    "port",
    "speed",
    "dialect",
    "context_tokens",
    "bytes_per_token",
    "stream_interval",
    "startup_s",
    "event_port",
    "event_replay_port",
    "seed",
)


def _check(args: argparse.Namespace, replica: ReplicaOptions) -> None:
    for name, low, high in (
        ("port", 0, 65535),
        ("event_port", 0, 65535),
        ("event_replay_port", 0, 65535),
        ("speed", 0.001, 10_000),
        ("bytes_per_token", 1, 8),
        ("stream_interval", 1, 1_000_000),
        ("block_size", 1, 65536),
        ("max_num_seqs", 1, 1_000_000),
        ("context_tokens", 2, 100_000_000),
        ("startup_s", 0, 86_400),
        ("seed", 0, 2**64 - 1),
    ):
        if not low <= getattr(args, name) <= high:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} must be between {low} and {high}", where=flag)
    if replica.max_num_batched_tokens < replica.max_num_seqs:
        raise UsageError(
            "--max-num-batched-tokens is below --max-num-seqs", hint="raise it, or lower the other"
        )
    if replica.kv_capacity_tokens < replica.block_size:
        raise UsageError("--kv-capacity-tokens holds not even one block")


def _timing(ref: str) -> TimingModel:
    """A shipped timing model by name, or one in a file."""
    if ref.endswith(".json"):
        return _timing_json(ref)
    from infctl import compose  # as slow to import as the emulator itself: on use alone

    try:
        return compose.timing(ref)
    except InputError as error:
        raise InputError(error.message, where=error.where or "--timing", hint=error.hint) from None


def _timing_json(text: str) -> TimingModel:
    source = text.strip()
    where = "--timing-json"
    if not source.startswith("{"):
        where = source
        try:
            with open(source, "rb") as file:
                source = file.read(1_000_000).decode("utf-8", "replace")
        except OSError as error:
            raise InputError(
                f"the timing model cannot be read: {error.strerror}", where=where
            ) from None
    try:
        return msgspec.json.decode(source, type=TimingModel)
    except msgspec.DecodeError as error:
        raise InputError(
            f"not a timing model: {error}",
            where=where,
            hint="It is JSON with prefill, decode, kv_capacity_tokens and source.",
        ) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="see python -m infctl.emulator --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m infctl.emulator", description=__doc__, allow_abbrev=False)
    add: Any = parser.add_argument
    add("--model", required=True, help="the name clients ask for")
    add("--alias", action="append", default=[], help="another name; may be repeated")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    timing = parser.add_mutually_exclusive_group(required=True)
    timing.add_argument(
        "--timing", help="a shipped timing model (`infctl profile list`), or a YAML or JSON file"
    )
    timing.add_argument("--timing-json", help="a timing model as JSON, or a file that holds it")
    add("--speed", type=float, default=1.0, help="engine time = wall time × speed")
    add("--dialect", choices=DIALECTS, default="vllm")
    add("--kv-capacity-tokens", type=int, default=0, help="default: the timing model's")
    add("--block-size", type=int, default=16, help="tokens in a KV block")
    add("--max-num-seqs", type=int, default=256)
    add("--max-num-batched-tokens", type=int, default=8192)
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    add("--context-tokens", type=int, default=131_072)
    add("--bytes-per-token", type=int, default=4, help="bytes of text that count as one token")
    add("--stream-interval", type=int, default=1, help="tokens in one streamed event")
    add("--startup-s", type=float, default=0.0, help="engine seconds until the port opens")
    add("--event-port", type=int, default=0, help="publish KV events on this port")
    add("--event-replay-port", type=int, default=0, help="answer replays of them on this port")
    add("--seed", type=int, default=0, help="of the block hashes that KV events carry")
    add("--fault", default="", help='as POST /fault takes it, e.g. {"mode": "slow", "factor": 4}')
    return parser
