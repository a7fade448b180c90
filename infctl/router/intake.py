"""From a client's HTTP request to what decisions need: allow-list, body, prompt, owned fields."""

from __future__ import annotations

import re
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from infctl.core.prefix import block_hashes, prefix_seed
from infctl.core.request import Request
from infctl.router.continuation import CHAT, COMPLETIONS
from infctl.router.wire import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from infctl.engine import Capabilities
    from infctl.router.wire import Head

POST_PATHS = frozenset(
    (
        b"/v1/completions",
        b"/v1/chat/completions",
        b"/v1/responses",
        b"/v1/messages",
        b"/v1/embeddings",
        b"/v1/rerank",
        b"/v1/score",
        b"/v1/audio/transcriptions",
        b"/v1/audio/translations",
        b"/v1/audio/speech",
        b"/tokenize",
        b"/detokenize",
    )
)
"""What reaches an engine. Everything else is a 404: control endpoints must never be reachable,
in whatever spelling, so a path is compared as it came and never decoded."""

CONTINUABLE = frozenset((COMPLETIONS, CHAT))
"""Whose streams another engine can go on with."""
_JSON_PATHS = POST_PATHS - {b"/v1/audio/transcriptions", b"/v1/audio/translations"}
"""Where a form is refused: its content type would carry a JSON body past the checks below, to an
engine that does not ask for the type."""

_FORM = b"multipart/"

_SEEDS_MAX = 10_000
_ASKS_MAX = 1000

_IMAGE_TOKENS = 1024
"""A stand-in for one image or audio part: real counts depend on the model's processor and size."""

_NAME_MAX = 512
"""Characters of a model's name, which is logged, echoed and kept; of a salt that is kept."""

_PATIENCE = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,6})?\Z")

_FALSE = (None, False, 0, "", "0", "false", "False", "no", "off")

_PART = re.compile(rb'"(?:image_url|input_image|image|input_audio|audio_url|video_url|file)"\s*:')
_PAYLOAD = re.compile(rb'"data:[\w./+-]+;base64,[^"]*"|"data"\s*:\s*"[^"]*"')
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")


class Asked(msgspec.Struct, frozen=True):
    """What of a streaming request matters to how its stream is followed. `path` is empty for what
    cannot be continued; `options` and `ids`: the client set `stream_options` and
    `return_token_ids` itself; `long`: token ids of the prompt would outweigh the answer."""

    path: bytes = b""
    options: bool = False
    ids: bool = False
    long: bool = False

    def adds_usage(self, can: Capabilities) -> bool:
        """Whether to ask this kind of engine for usage."""
        return can.stream_usage and not self.options and bool(self.path)

    def adds_ids(self, can: Capabilities) -> bool:
        """Whether to ask this kind of engine for token ids."""
        return self.path in can.stream_token_ids and not (self.ids or self.long)

    def added(self, can: Capabilities) -> bytes:
        """What goes into the body, right behind its first brace."""
        usage = b'"stream_options":{"include_usage":true},' if self.adds_usage(can) else b""
        return usage + (b'"return_token_ids":true,' if self.adds_ids(can) else b"")


NOTHING_ASKED = Asked()
_IDS_PROMPT_BYTES_MAX = 32_768


class Intake:
    """Parses bodies. `owned_fields` are stripped from what clients send; `priorities` are the
    classes they may name, the most urgent first."""

    def __init__(
        self,
        owned_fields: Iterable[str],
        extra_paths: Iterable[str],
        seed: int,
        priorities: Iterable[str],
    ) -> None:
        self.owned = tuple(sorted(set(owned_fields)))
        self.paths = POST_PATHS | {p.encode() for p in extra_paths}
        self._decode_body = msgspec.json.Decoder(_body_struct(self.owned)).decode
        self._owned_of = _values(self.owned)
        self._none_owned = (msgspec.UNSET,) * len(self.owned)
        self._seeds: dict[tuple[str, str | None], int] = {}
        self._asks: dict[tuple[bytes, bool, bool, bool], Asked] = {}
        self._priorities = {name.encode(): index for index, name in enumerate(priorities)}
        self._ids = count(1)
        self._id_prefix = b"%016x" % (seed & 0xFFFFFFFFFFFFFFFF)

    def request_id(self, head: Head) -> bytes:
        """The client's own request id where it is harmless, a fresh one otherwise."""
        given = head.get(b"x-request-id")
        if given is not None and _REQUEST_ID.match(given):
            return given
        return b"%s-%x" % (self._id_prefix, next(self._ids))

    def read(
        self, head: Head, body: bytes | bytearray, default_model: Callable[[], str]
    ) -> tuple[Request, bytes | bytearray, Asked]:
        """The request, the body to forward, which is the client's own, untouched, unless a
        router-owned field had to be removed, and what its stream needs. Raises BadRequest."""
        asked, content_type = NOTHING_ASKED, head.get(b"content-type")
        internal_id = f"r{next(self._ids)}"
        if content_type and content_type[0] in b"mM" and content_type.lower().startswith(_FORM):
            if head.url.partition(b"?")[0] in _JSON_PATHS:
                raise BadRequest(415, "this path takes JSON, not forms")
            request = Request(id=internal_id, model=default_model(), prompt_bytes=len(body))
        else:
            if head.get(b"content-encoding") not in (None, b"identity"):
                raise BadRequest(415, "compressed request bodies are not accepted")
            parsed = self._decode(body)
            if self._owned_of(parsed) != self._none_owned:
                body = self._strip(body)
            request = self._reduce(parsed, internal_id, head, default_model)
            if request.stream:
                asked = self._asked(head, request, parsed)
        request.body_bytes = len(body)
        fields = head.fields
        if b"x-priority" in fields:
            request.priority = self._priority(fields[b"x-priority"])
        if b"x-request-timeout-s" in fields:
            request.patience_s = _patience_s(fields[b"x-request-timeout-s"])
        return request, body, asked

    def _asked(self, head: Head, request: Request, parsed: Any) -> Asked:
        unset = msgspec.UNSET
        key = (
            head.url,
            parsed.stream_options is not unset,
            parsed.return_token_ids is not unset,
            request.prompt_bytes > _IDS_PROMPT_BYTES_MAX,
        )
        found = self._asks.get(key)
        if found is None:
            path = head.url.partition(b"?")[0]
            found = Asked(path, *key[1:]) if path in CONTINUABLE else NOTHING_ASKED
            if len(self._asks) < _ASKS_MAX:
                self._asks[key] = found
        return found

    def _priority(self, name: bytes) -> int:
        found = self._priorities.get(name)
        if found is None:
            known = b", ".join(self._priorities).decode()
            raise BadRequest(400, f"x-priority must be one of: {known}")
        return found

    def _decode(self, body: bytes | bytearray) -> Any:
        try:
            return self._decode_body(body)
        except msgspec.ValidationError as error:
            raise BadRequest(400, f"invalid request body: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(400, f"the request body is not valid JSON: {error}") from None

    def _strip(self, body: bytes | bytearray) -> bytes:
        """Without what the router owns; every value that stays, byte by byte."""
        try:
            fields = _decode_fields(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(400, f"the request body is not valid JSON: {error}") from None
        return msgspec.json.encode({k: v for k, v in fields.items() if k not in self.owned})

    def _reduce(
        self, parsed: Any, internal_id: str, head: Head, default_model: Callable[[], str]
    ) -> Request:
        model = parsed.model or default_model()
        if len(model) > _NAME_MAX:
            raise BadRequest(400, f"the model's name is longer than {_NAME_MAX} characters")
        prompt = _prompt(parsed)
        request = Request(
            id=internal_id,
            model=model,
            max_tokens=_tokens(parsed.max_completion_tokens) or _tokens(parsed.max_tokens),
            session=_session(head, parsed),
            stream=parsed.stream not in _FALSE,
        )
        if prompt:
            request.blocks = block_hashes(prompt, self._seed(model, parsed))
            request.prompt_bytes, request.extra_tokens, request.plain_text = _measure(prompt)
        return request

    def _seed(self, model: str, parsed: Any) -> int:
        """Where the prompt's hash chain starts: model, salt, and what templates put before it."""
        unset, salt = msgspec.UNSET, str(parsed.cache_salt or "")
        plain = parsed.tools is parsed.system is parsed.instructions is unset
        if plain and len(salt) <= _NAME_MAX:
            seed = self._seeds.get((model, salt))
            if seed is None:
                if len(self._seeds) > _SEEDS_MAX:
                    self._seeds.clear()
                seed = self._seeds[model, salt] = prefix_seed(model, salt, "", "", "")
            return seed
        return prefix_seed(model, salt, *_template_parts(parsed))


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """All attributes of an object at once, always as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda item: tuple(getattr(item, name) for name in names)


def _body_struct(owned: tuple[str, ...]) -> type[Any]:
    """What is read of a body: the parts decisions need, raw where their content is the engine's
    business. Engines accept numbers as strings and the like, so these types are lenient."""
    raw, unset = msgspec.Raw | msgspec.UnsetType, msgspec.UNSET
    any_scalar = bool | int | float | str | None
    return msgspec.defstruct(
        "Body",
        [
            ("model", str | None, None),
            ("prompt", raw, unset),
            ("messages", raw, unset),
            ("input", raw, unset),
            ("system", raw, unset),
            ("instructions", raw, unset),
            ("tools", raw, unset),
            ("stream", any_scalar, None),
            ("stream_options", raw, unset),
            ("return_token_ids", raw, unset),
            ("max_tokens", any_scalar, None),
            ("max_completion_tokens", any_scalar, None),
            ("cache_salt", any_scalar, None),
            ("user", any_scalar, None),
            *[(name, raw, unset) for name in owned],
        ],
        gc=False,
    )


def _patience_s(value: bytes) -> float:
    seconds = float(value) if _PATIENCE.match(value) else 0.0
    if not seconds:
        raise BadRequest(400, "x-request-timeout-s must be a number of seconds above 0")
    return seconds


def _tokens(value: Any) -> int:
    """A count of tokens that may be a number or the text of one; 0 if it is none."""
    try:
        return max(int(value or 0), 0)
    except (ValueError, OverflowError):
        return 0


def _prompt(parsed: Any) -> memoryview | None:
    for field in (parsed.messages, parsed.prompt, parsed.input):
        if field is not msgspec.UNSET:
            # Without the closing bracket or quote, so that a longer prompt extends a shorter one.
            return memoryview(field)[:-1]
    return None


def _template_parts(parsed: Any) -> list[bytes]:
    """What chat templates put before the messages."""
    fields = (parsed.tools, parsed.system, parsed.instructions)
    return [bytes(f) if f is not msgspec.UNSET else b"" for f in fields]


def _session(head: Head, parsed: Any) -> str:
    given = head.get(b"x-session-id")
    return given.decode("latin-1") if given else str(parsed.user or "")


def _measure(prompt: memoryview) -> tuple[int, int, bool]:
    """Bytes of text, tokens that are not text, and whether it is plain text throughout."""
    if prompt[:2].tobytes().lstrip(b"[ ").isdigit():
        return len(prompt), 0, False
    if len(prompt) < 16 or prompt[0] != ord("["):
        return len(prompt), 0, True
    data = prompt.tobytes()
    parts = len(_PART.findall(data))
    if not parts:
        return len(prompt), 0, True
    payload = sum(m.end() - m.start() for m in _PAYLOAD.finditer(data))
    return max(len(prompt) - payload, 0), parts * _IMAGE_TOKENS, False
