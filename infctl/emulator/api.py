"""The endpoints of an emulated engine, in the dialect of vLLM or SGLang."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from infctl.emulator import bodies, wire
from infctl.emulator.bodies import BadRequest
from infctl.emulator.faults import parse_fault
from infctl.emulator.prompt import from_ids, from_text
from infctl.emulator.stream import Answer
from infctl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from infctl.emulator.engine import EmulatedEngine
    from infctl.emulator.http import Connection, HttpRequest
    from infctl.emulator.prompt import Prompt

_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}

Handler = "Callable[[HttpRequest, Connection], None]"


class Api:
    """Requests in, answers out; the engine behind it does the work."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self.engine = engine
        self.options = engine.options
        self.dialect = engine.options.dialect
        self._routes = self._common() | (self._vllm() if self.dialect == "vllm" else self._sglang())

    def handle(self, request: HttpRequest, reply: Connection) -> None:
        """Answer a request, now or later."""
        handler = self._routes.get((request.method, request.path))
        if handler is None and request.method == b"HEAD":
            handler = self._routes.get((b"GET", request.path))
        if handler is None:
            reply.send(404, b'{"detail":"Not Found"}')
            return
        try:
            handler(request, reply)
        except BadRequest as error:
            self._error(reply, error.status, error.message, error.param)
        except InputError as error:
            self._error(reply, 400, str(error))

    def _error(
        self, reply: Connection, status: int, message: str, param: str | None = None
    ) -> None:
        reply.send(status, wire.error(self.dialect, status, message, param))

    def _common(self) -> dict[tuple[bytes, bytes], Callable[[HttpRequest, Connection], None]]:
        return {
            (b"GET", b"/health"): lambda _, reply: reply.send(200, b""),
            (b"GET", b"/v1/models"): self._models,
            (b"GET", b"/metrics"): self._metrics,
            (b"POST", b"/v1/completions"): lambda r, c: self._generate(r, c, chat=False),
            (b"POST", b"/v1/chat/completions"): lambda r, c: self._generate(r, c, chat=True),
            (b"POST", b"/tokenize"): self._tokenize,
            (b"POST", b"/detokenize"): self._detokenize,
            (b"POST", b"/fault"): self._fault,
            (b"GET", b"/server_info"): self._server_info,
        }

    def _vllm(self) -> dict[tuple[bytes, bytes], Callable[[HttpRequest, Connection], None]]:
        return {
            (b"GET", b"/version"): self._version,
            (b"GET", b"/load"): self._load,
            (b"POST", b"/sleep"): self._sleep,
            (b"POST", b"/wake_up"): self._wake,
            (b"GET", b"/is_sleeping"): self._is_sleeping,
            (b"POST", b"/reset_prefix_cache"): self._reset,
            (b"POST", b"/abort_requests"): self._abort_requests,
        }

    def _sglang(self) -> dict[tuple[bytes, bytes], Callable[[HttpRequest, Connection], None]]:
        return {
            (b"GET", b"/health_generate"): lambda _, reply: reply.send(200, b""),
            (b"GET", b"/model_info"): self._model_info,
            (b"GET", b"/v1/loads"): self._loads,
            (b"POST", b"/v1/tokenize"): self._tokenize,
            (b"POST", b"/release_memory_occupation"): self._sleep,
            (b"POST", b"/resume_memory_occupation"): self._wake,
            (b"GET", b"/flush_cache"): self._reset,
            (b"POST", b"/flush_cache"): self._reset,
            (b"POST", b"/abort_request"): self._abort_requests,
        }

    # -- generation --------------------------------------------------------------------------

    def _generate(self, request: HttpRequest, reply: Connection, *, chat: bool) -> None:
        fault = self.engine.error_status
        if fault is not None:
            self._error(reply, fault, "injected fault")
            return
        body = bodies.parse(request.body, chat=chat)
        model = self._known_model(body.model)
        prompt = bodies.prompt_of(body, chat=chat, bytes_per_token=self.options.bytes_per_token)
        tokens, reason = self._output(body, prompt.tokens)
        shape = wire.Shape(
            dialect=self.dialect,
            chat=chat,
            id=self._id(request, body, chat=chat),
            created=self.engine.unix_s(),
            model=model,
        )
        answer = Answer(shape, prompt, tokens, reason, reply, self.engine.speech)
        self._start(answer, prompt, body, reply)

    def _start(self, answer: Answer, prompt: Prompt, body: bodies.Body, reply: Connection) -> None:
        request_id = answer.shape.id
        try:
            self.engine.loop.submit(answer)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        reply.on_lost = lambda: self.engine.lost(request_id)
        reply.on_resume = lambda: self.engine.loop.resume(request_id)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            told = self._tells_ids(body, answer.shape.chat)
            ids = prompt.token_ids() if told else None
            interval = self.options.stream_interval
            answer.stream(include_usage=usage, interval=interval, prompt_ids=ids)

    def _tells_ids(self, body: bodies.Body, chat: bool) -> bool:
        """Where a token is as wide as an id, ids of text and ids of a prompt are the same."""
        if body.return_token_ids and chat and self.dialect == "sglang":
            raise BadRequest(
                "return_token_ids is not supported with streaming on /v1/chat/completions."
            )
        width = self.options.bytes_per_token
        return body.return_token_ids and not chat and width == wire.TOLD_WIDTH

    def _known_model(self, model: str | None) -> str:
        """The name to answer with; SGLang serves whatever name it is asked for."""
        options = self.options
        if model is None or model == options.model or model in options.aliases:
            return model or options.model
        if self.dialect == "sglang":
            return model
        names = ", ".join((options.model, *options.aliases))
        raise BadRequest(
            f"The model `{model}` does not exist. Valid aliases: {names}.", "model", 404
        )

    def _output(self, body: bodies.Body, prompt_tokens: int) -> tuple[int, str]:
        """How many tokens to generate and why it ends there. Raises BadRequest."""
        limit, context = body.limit, self.options.context_tokens
        if prompt_tokens >= context or (limit is not None and prompt_tokens + limit > context):
            raise BadRequest(self._too_long(prompt_tokens, limit, context), "input_tokens")
        room = context - prompt_tokens if limit is None else limit
        if body.ignore_eos:
            return room, "length"
        eos = self.engine.speech.until_eos(prompt_tokens)
        return (eos, "stop") if eos <= room else (room, "length")

    def _too_long(self, prompt_tokens: int, limit: int | None, context: int) -> str:
        if self.dialect == "sglang":
            if prompt_tokens >= context:
                return (
                    f"The input ({prompt_tokens} tokens) is longer than the model's context "
                    f"length ({context} tokens)."
                )
            return (
                "Requested token count exceeds the model's maximum context length of "
                f"{context} tokens. You requested a total of {prompt_tokens + (limit or 0)} tokens."
            )
        start = f"This model's maximum context length is {context} tokens. However, "
        if prompt_tokens >= context:
            return (
                f"{start}your prompt contains at least {prompt_tokens} input tokens, which exceeds "
                "this limit even without any output tokens. Please reduce the length of the input "
                f"prompt. (parameter=input_tokens, value={prompt_tokens})"
            )
        return (
            f"{start}you requested {limit} output tokens and your prompt contains at least "
            f"{prompt_tokens} input tokens. Please reduce the length of the input prompt or the "
            f"number of requested output tokens. (parameter=input_tokens, value={prompt_tokens})"
        )

    def _id(self, request: HttpRequest, body: bodies.Body, *, chat: bool) -> str:
        if self.dialect == "sglang":
            wanted = body.rid or secrets.token_hex(16)
        else:
            given = request.headers.get(b"x-request-id", b"").decode("latin-1")
            wanted = ("chatcmpl-" if chat else "cmpl-") + (given or secrets.token_hex(8))
        if wanted in self.engine.loop.answers:
            wanted += "-" + secrets.token_hex(4)
        return wanted

    # -- everything else ---------------------------------------------------------------------

    def _json(self, reply: Connection, value: object) -> None:
        reply.send(200, wire.encode(value))

    def _models(self, _: HttpRequest, reply: Connection) -> None:
        options = self.options
        data = [
            {
                "id": name,
                "object": "model",
                "created": self.engine.started_unix_s,
                "owned_by": self.dialect,
                "root": options.model,
                "parent": None,
                "max_model_len": options.context_tokens,
            }
            for name in (options.model, *options.aliases)
        ]
        self._json(reply, {"object": "list", "data": data})

    def _metrics(self, _: HttpRequest, reply: Connection) -> None:
        reply.send(200, self.engine.metrics_text(), _METRICS_TYPE)

    def _version(self, _: HttpRequest, reply: Connection) -> None:
        self._json(reply, {"version": _VERSIONS["vllm"]})

    def _load(self, _: HttpRequest, reply: Connection) -> None:
        self._json(reply, {"server_load": len(self.engine.loop.answers)})

    def _server_info(self, _: HttpRequest, reply: Connection) -> None:
        info = msgspec.to_builtins(self.options)
        info |= {"version": _VERSIONS[self.dialect], "served_model_name": self.options.model}
        info |= {"emulated": True}
        self._json(reply, info)

    def _model_info(self, _: HttpRequest, reply: Connection) -> None:
        name = self.options.model
        self._json(reply, {"model_path": name, "served_model_name": name, "is_generation": True})

    def _loads(self, _: HttpRequest, reply: Connection) -> None:
        load = self.engine.loop.replica.load(self.engine.loop.clock.now_ms())
        row = {
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "token_usage": load.kv_usage,
        }
        self._json(reply, {"version": _VERSIONS["sglang"], "loads": [row]})

    def _tokenize(self, request: HttpRequest, reply: Connection) -> None:
        body = bodies.parse(request.body, chat=False)
        text = bodies.render(body) if body.messages else body.prompt
        if not isinstance(text, str):
            raise BadRequest("prompt must be a string", "prompt")
        ids = from_text(text, self.options.bytes_per_token).token_ids()
        length = self.options.context_tokens
        self._json(reply, {"count": len(ids), "max_model_len": length, "tokens": ids})

    def _detokenize(self, request: HttpRequest, reply: Connection) -> None:
        try:
            ids = msgspec.json.decode(request.body, type=_Ids).tokens
            text = from_ids(ids).data.decode(errors="replace")
        except (msgspec.DecodeError, ValueError) as error:
            raise BadRequest(f"1 validation error:\n  {error}", "tokens") from None
        self._json(reply, {"prompt" if self.dialect == "vllm" else "text": text})

    def _fault(self, request: HttpRequest, reply: Connection) -> None:
        fault = parse_fault(request.body)
        self._json(reply, {"fault": fault.mode})
        self.engine.set_fault(fault)

    def _sleep(self, request: HttpRequest, reply: Connection) -> None:
        level = parse_qs(request.query.decode("latin-1")).get("level", ["1"])[0]
        if level not in ("1", "2"):
            raise BadRequest("the sleep level must be 1 or 2", "level")
        self.engine.sleep(int(level), lambda: reply.send(200, b""))

    def _wake(self, _: HttpRequest, reply: Connection) -> None:
        self.engine.wake(lambda: reply.send(200, b""))

    def _is_sleeping(self, _: HttpRequest, reply: Connection) -> None:
        self._json(reply, {"is_sleeping": self.engine.asleep})

    def _reset(self, _: HttpRequest, reply: Connection) -> None:
        self.engine.loop.replica.cache.clear()
        self.engine.loop.run()
        reply.send(200, b"")

    def _abort_requests(self, request: HttpRequest, reply: Connection) -> None:
        try:
            wanted = msgspec.json.decode(request.body, type=_Abort)
        except msgspec.DecodeError as error:
            raise BadRequest(f"1 validation error:\n  {error}") from None
        everything = wanted.abort_all or not (wanted.request_ids or wanted.rid)
        ids = [*wanted.request_ids, *([wanted.rid] if wanted.rid else [])]
        self.engine.end(list(self.engine.loop.answers) if everything else ids)
        reply.send(200, b"")


class _Ids(msgspec.Struct, frozen=True):
    """The body of /detokenize."""

    tokens: list[int]


class _Abort(msgspec.Struct, frozen=True):
    """Bodies of vLLM's /abort_requests and SGLang's /abort_request."""

    request_ids: list[str] = []
    rid: str | None = None
    abort_all: bool = False
