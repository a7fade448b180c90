"""JSON bodies: what the intake makes of them, against json.loads.

What the router owns never goes on, however it is spelled; what it does not touch goes on byte by
byte; what it does touch is the same object otherwise; and nothing but a refusal is raised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from infctl.core.learning import Experience
from infctl.router.continuation import Unsafe
from infctl.router.framing import chunk
from infctl.router.intake import Intake
from infctl.router.resume import Resume
from infctl.router.wire import BadRequest, parse_head

from .harness import Broken
from .source import Source, mutated

OWNED = ("kv_transfer_params", "bootstrap_room", "rid", "data_parallel_rank")
NAMES = (
    *OWNED, "model", "prompt", "messages", "input", "stream", "max_tokens", "user", "system",
    "cache_salt", "tools", "stream_options", "return_token_ids", "max_completion_tokens",
    "stop", "response_format", "n", "seed", "temperature", "tool_choice", "min_tokens", "x",
    "instructions", "logprobs", "KV_transfer_params", "kv_transfer_params ", "",
)  # fmt: skip
SCALARS = (
    "1", "0", "-1", "1.0", "1e5", "1e400", "-0", "18446744073709551616", "1" * 40, "1e308", "true",
    "false", "null", '""', '"m"', '"a b"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', '"\u4e16"',
    '"\\n\\""', "NaN", "[]", "{}", '"1"', '"9999999999999999999999"', "9223372036854775807",
    '[{"role":"user","content":"hi"}]', '"data:image/png;base64,AAAA"', "0.1", "1E-7", '"\\u0000"',
    '{"include_usage":true}', '["a","b"]', "[1,2,3]", '{"type":"json_object"}',
    '"' + "a" * 600 + '"',
)  # fmt: skip
TOKENS: Sequence[bytes] = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\u0061", b"\xff", b"\xc3",
    b"\xed\xa0\x80",
    b"\x00", b" ", b"\n", b"\t", b"\xef\xbb\xbf", b'"rid":1,', b'"kv_transfer_params":{},', b"null",
    b"e", b".", b"-", b"/**/", b"'", b"1" * 30, b'"model":"b",', b'"\\u0072id":1,',
)  # fmt: skip
PATHS = (b"/v1/completions", b"/v1/chat/completions", b"/v1/embeddings", b"/tokenize")
EXTRAS = (b"", b"", b"X-Priority: batch\r\n", b"X-Session-Id: \xff\r\n",
          b"X-Request-Timeout-S: 3\r\n",
          b"Content-Type: application/json\r\n", b"Content-Type: multipart/form-data\r\n",
          b"Content-Encoding: gzip\r\n")  # fmt: skip


def spelled(source: Source, name: str) -> str:
    """A key, some of its characters escaped."""
    if not source.one_in(3) or not name:
        return json.dumps(name)
    at = source.below(len(name))
    escaped = source.pick(("\\u%04x", "\\u%04X")) % ord(name[at])
    return f'"{name[:at]}{escaped}{name[at + 1 :]}"'


def value(source: Source, depth: int = 0) -> str:
    """The text of a JSON value."""
    how = source.below(8)
    if how == 0 and depth < 4:
        return "[" + ",".join(value(source, depth + 1) for _ in range(source.below(4))) + "]"
    if how == 1 and depth < 4:
        return an_object(source, depth + 1)
    if how == 2 and source.one_in(64):
        deep = source.pick((100, 900, 1100, 20_000))
        return "[" * deep + "]" * deep
    return source.pick(SCALARS)


def an_object(source: Source, depth: int = 0) -> str:
    """The text of an object, keys of which may come twice."""
    gap = source.pick(("", "", " ", "\n\t"))
    pairs = [
        f"{spelled(source, source.pick(NAMES))}{gap}:{gap}{value(source, depth)}"
        for _ in range(source.below(6 if depth else 9))
    ]
    return "{" + gap + ("," + gap).join(pairs) + "}"


class Bodies:
    """The target: one intake."""

    def __init__(self) -> None:
        self.intake = Intake(OWNED, (), 1, ("interactive", "batch"))
        self.experience = Experience()
        self.heads: dict[tuple[bytes, bytes], Any] = {}

    def __call__(self, data: bytes) -> None:
        source = Source(data)
        path, extra = source.pick(PATHS), source.pick(EXTRAS)
        head = self.heads.get((path, extra))
        if head is None:
            line = b"POST " + path + b" HTTP/1.1\r\nHost: r\r\n" + extra + b"\r\n"
            head = self.heads[path, extra] = parse_head(line)
            head.parsed()
        if source.one_in(8):
            body = source.take(source.left)
        else:
            body = mutated(source, an_object(source).encode(), TOKENS, most=2)
        self._read(head, path, bytearray(body) if source.one_in(2) else body)

    def _read(self, head: Any, path: bytes, body: bytes | bytearray) -> None:
        before = bytes(body)
        try:
            request, forwarded, _ = self.intake.read(head, body, lambda: "m")
        except BadRequest as error:
            error.message.encode()
            if not 400 <= error.status < 500:
                raise Broken(f"refused with {error.status}") from error
            return
        if request.priority not in (0, 1) or len(self.intake._seeds) > 10_001:
            raise Broken("a priority or a table beyond its bounds")
        self.experience.estimate(request)
        if (
            head.get(
                b"content-type",
            )
            != b"multipart/form-data"
        ):
            compare(before, bytes(forwarded))
            _resumes(path, bytes(forwarded))


def compare(before: bytes, after: bytes) -> None:
    """Raises Broken where something owned goes on, or something else is changed."""
    keys: list[str] = []
    try:
        sent = _parse(before, keys)
    except (ValueError, RecursionError):
        sent = None  # an engine that reads strictly refuses it
    if sent is not None and not keys_owned(keys) and after != before:
        raise Broken(f"changed without need: {before!r} became {after!r}")
    if after == before and sent is None:
        return
    gone: list[str] = []
    try:
        got = _parse(after, gone)
    except (ValueError, RecursionError) as error:
        if sent is None:
            return
        raise Broken(f"made unreadable: {before!r} became {after!r}") from error
    if keys_owned(gone):
        raise Broken(f"{keys_owned(gone)} goes on: {before!r} became {after!r}")
    if sent is not None and _text(got) != _text({k: v for k, v in sent.items() if k not in OWNED}):
        raise Broken(f"another object: {before!r} became {after!r}")


def keys_owned(keys: list[str]) -> list[str]:
    """Those of the router."""
    return [key for key in keys if key in OWNED]


def _parse(text: bytes, keys: list[str]) -> dict[str, Any]:
    """The object, and in `keys` those of its outermost level, repeated ones too."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        keys[:] = [key for key, _ in found]  # the outermost object comes last
        return dict(found)

    found = json.loads(text, object_pairs_hook=pairs)
    if not isinstance(found, dict):
        raise Broken(f"no object was let in: {text!r}")
    return found


def _text(found: Any) -> str:
    return json.dumps(found)


_EVENT = chunk(b'data: {"choices":[{"text":"ab"}]}\n\n')


def _resumes(path: bytes, body: bytes) -> None:
    """An answer to it that breaks off is continued, or said to be unsafe; nothing else."""
    try:
        resume = Resume(path, body)
        resume.take([_EVENT])
        if not resume.complete:
            resume.joint()
        resume.ending()
    except Unsafe:
        pass
