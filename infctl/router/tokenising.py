"""Exact tokenising: prompts become tokens as the engine's own, off the event loop.

A request whose model has a tokenizer waits for its tokens, at most for some milliseconds, before
the Director hears of it. What is ready by then counts: all tokens, the beginning of them, or none,
and then its text blocks serve. What comes later is told as an event, so that the index learns it.

Threads take turns: each time a prompt is up, so many characters of it are tokenised, then it queues
again, so that a long one does not hold up short ones.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING

from infctl.core import events as ev
from infctl.core.histogram import Histogram
from infctl.core.prefix import block_hashes, prefix_seed
from infctl.router.continuation import CHAT, COMPLETIONS
from infctl.router.prompts import prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infctl.core.request import Request
    from infctl.profile.model import Profile
    from infctl.router.driver import Router
    from infctl.router.proxy import Exchange
    from infctl.router.tokenizer import ModelTokenizer

_PATHS = (COMPLETIONS, CHAT)
_TURN_CHARS = 16_384
_BODY_MAX = 1 << 20
_WAITING_MAX = 256
_TOKENS_PER_S = 200_000.0
"""What is tokenised at most, beyond a second's worth saved up; known beginnings cost nothing. A
core does about 300,000."""

_DEADLINE_S = 0.01
_DEADLINE_S_PER_BYTE = 0.5e-6
_DEADLINE_S_MAX = 0.06
"""Small beside the prefill of such a prompt."""

_RESULTS = ("exact", "partial", "late", "capped", "unusable")
_TIMES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class TokenisingStats:
    """What became of prompts that were to be tokenised. `late`, `capped` and `unusable` ones went
    by their text. `checked` requests were compared with the engine's own count; `error_tokens` is
    by how much those differed."""

    def __init__(self) -> None:
        self.results = dict.fromkeys(_RESULTS, 0)
        self.seconds = Histogram(_TIMES_S)
        self.encoded_tokens = 0
        self.known_tokens = 0
        self.checked = 0
        self.error_tokens = 0

    def check(self, told: int, counted: int) -> None:
        """Compare an engine's count with ours."""
        self.checked += 1
        self.error_tokens += abs(told - counted)


class _Cap:
    """Tokens a second: at most a second's worth at once."""

    def __init__(self, per_s: float) -> None:
        self._each_s = 1.0 / per_s
        self._paid_until = 0.0

    def used_up(self, now: float) -> bool:
        return self._paid_until - now > 1.0

    def take(self, tokens: int, now: float) -> None:
        self._paid_until = max(self._paid_until, now) + tokens * self._each_s


class Job:
    """One prompt on its way to tokens. `pieces` are its parts in order, `tokens` of each, None
    where they are not known yet; `over`: the request waits no longer."""

    __slots__ = (
        "around",
        "body",
        "capped",
        "expired",
        "failed",
        "keys",
        "next",
        "path",
        "pieces",
        "request",
        "seed",
        "started",
        "tokenizer",
        "tokens",
    )  # fmt: skip

    def __init__(
        self, tokenizer: ModelTokenizer, request: Request, path: bytes, body: bytes | bytearray
    ) -> None:
        self.tokenizer = tokenizer
        self.request = request
        self.path = path
        self.body = body
        self.started = time.monotonic()
        self.pieces: list[str] = []
        self.keys: list[bytes] = []
        self.tokens: list[bytes | None] = []
        self.around = (b"", b"")
        self.seed = 0
        self.next = 0
        self.expired = self.failed = self.capped = False

    def begin(self) -> int:
        """Find the prompt, and what is known of its tokens already: so many tokens."""
        prompt = prompt_of(self.tokenizer, self.path, bytes(self.body))
        self.seed = prefix_seed(self.request.model, prompt.salt, "tokens")
        cache = self.tokenizer.cache
        self.around = prompt.around
        if prompt.ids is not None:
            self.tokens = [prompt.ids]
            return 0
        self.pieces = self.tokenizer.cut(prompt.text)
        self.keys = [cache.key(piece) for piece in self.pieces]
        self.tokens = [cache.get(key) for key in self.keys]
        return sum(len(tokens) for tokens in self.tokens if tokens is not None) // 4

    def turn(self) -> int:
        """Tokenise some of what is missing; how many tokens that made."""
        turn: list[int] = []
        chars = 0
        while self.next < len(self.tokens) and chars < _TURN_CHARS:
            if self.tokens[self.next] is None:
                turn.append(self.next)
                chars += len(self.pieces[self.next])
            self.next += 1
        made = self.tokenizer.encode([self.pieces[at] for at in turn]) if turn else []
        for at, tokens in zip(turn, made, strict=True):
            self.tokens[at] = tokens
            self.tokenizer.cache.put(self.keys[at], tokens)
        return sum(map(len, made)) // 4

    @property
    def complete(self) -> bool:
        """Whether every token is known."""
        return bool(self.tokens) and None not in self.tokens

    def result(self) -> tuple[int, list[int]]:
        """Tokens, 0 unless all are known, and the blocks of what is known from the beginning on."""
        known = [t for t in takewhile(lambda t: t is not None, self.tokens) if t is not None]
        whole = len(known) == len(self.tokens)
        ids = b"".join((self.around[0], *known, self.around[1] if whole else b""))
        return (len(ids) // 4 if whole else 0), block_hashes(ids, self.seed)


class Tokenising:
    """The threads, and the requests that wait for them. `tokenizers` by model name."""

    def __init__(
        self,
        router: Router,
        tokenizers: Mapping[str, ModelTokenizer],
        tokens_per_s: float = _TOKENS_PER_S,
    ) -> None:
        self.stats = TokenisingStats()
        self._router = router
        self._tokenizers = dict(tokenizers)
        self._threads = ThreadPoolExecutor(
            2 if (os.cpu_count() or 1) > 2 else 1, thread_name_prefix="tokenizer"
        )
        self._loop = asyncio.get_running_loop()
        self._cap = _Cap(tokens_per_s)
        self._lock = Lock()
        self._waiting: dict[Job, tuple[Exchange, asyncio.TimerHandle]] = {}
        self._working = 0

    def takes(self, exchange: Exchange) -> bool:
        """Begin with a request's prompt, and tell the Director of the request later. False: there
        is nothing to tokenise, or too much waits already."""
        tokenizer = self._tokenizers.get(exchange.request.model)
        if tokenizer is None or not exchange.request.blocks:
            return False
        path, size = exchange.head.url.partition(b"?")[0], len(exchange.body)
        if path not in _PATHS or size > _BODY_MAX:
            return False
        if self._working >= _WAITING_MAX:
            self.stats.results["late"] += 1
            return False
        job = Job(tokenizer, exchange.request, path, exchange.body)
        patience = min(_DEADLINE_S + size * _DEADLINE_S_PER_BYTE, _DEADLINE_S_MAX)
        timer = self._loop.call_later(patience, self._expired, job)
        self._waiting[job] = exchange, timer
        self._working += 1
        self._threads.submit(self._work, job, True)
        return True

    def whole(self, request: Request, body: bytes | bytearray) -> None:
        """Tokenise a completion's prompt to its end, in the thread of the caller."""
        tokenizer = self._tokenizers.get(request.model)
        if tokenizer is None or not request.blocks or len(body) > _BODY_MAX:
            return
        job = Job(tokenizer, request, COMPLETIONS, body)
        try:
            job.begin()
            while not job.complete:
                job.turn()
        except Exception:  # as in _work
            return
        self._use(job)

    def closed(self, exchange: Exchange) -> None:
        """A request is over: compare the engine's count of its prompt with ours."""
        request, usage = exchange.request, exchange.usage
        if request.tokens and usage is not None and usage.prompt_tokens and exchange.attempt == 1:
            self.stats.check(usage.prompt_tokens, request.tokens)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- in a thread ------------------------------------------------------------------------------

    def _work(self, job: Job, first: bool) -> None:
        """A job's turn. One that nobody waits for any more before its first is dropped: there is
        more to do than can be done."""
        if first and job.expired:
            self._tell(self._done, job)
            return
        try:
            known = job.begin() if first else 0
            made = self._turn(job)
        except Exception:  # the prompt is a stranger's, and templates and libraries raise anything
            job.failed, known, made = True, 0, 0
        with self._lock:
            self.stats.known_tokens += known
            self.stats.encoded_tokens += made
        if job.failed or job.capped or job.complete:
            self._tell(self._done, job)
        else:
            self._again(job)

    def _turn(self, job: Job) -> int:
        if job.complete:
            return 0
        if self._cap.used_up(time.monotonic()):
            job.capped = True
            return 0
        made = job.turn()
        with self._lock:
            self._cap.take(made, time.monotonic())
        return made

    def _again(self, job: Job) -> None:
        try:
            self._threads.submit(self._work, job, False)
        except RuntimeError:  # closing
            self._tell(self._done, job)

    def _tell(self, call: Callable[[Job], None], job: Job) -> None:
        try:
            self._loop.call_soon_threadsafe(call, job)
        except RuntimeError:
            return  # the loop has closed

    # --- in the event loop ------------------------------------------------------------------------

    def _done(self, job: Job) -> None:
        self._working -= 1
        waiting = self._waiting.pop(job, None)
        if waiting is not None:
            waiting[1].cancel()
            self._arrive(job, waiting[0])
        elif job.complete:
            tokens, blocks = job.result()
            self._router.handle(ev.Tokenised(job.request.id, tokens, blocks))

    def _expired(self, job: Job) -> None:
        job.expired = True
        waiting = self._waiting.pop(job, None)
        if waiting is not None:
            self._arrive(job, waiting[0])

    def _arrive(self, job: Job, exchange: Exchange) -> None:
        """The wait is over, with what is known by now."""
        self.stats.results[self._use(job)] += 1
        self.stats.seconds.add(time.monotonic() - job.started)
        if not exchange.done:
            self._router.handle(ev.RequestArrived(exchange.request))

    def _use(self, job: Job) -> str:
        """Put what is known of the tokens into the request; what became of them."""
        if job.failed:
            return "unusable"
        tokens, blocks = job.result() if job.tokens else (0, [])
        if not (tokens or blocks):
            return "capped" if job.capped else "late"
        request = job.request
        request.tokens, request.blocks, request.token_blocks = tokens, blocks, True
        return "exact" if tokens else "partial"


def start(profile: Profile, router: Router) -> Tokenising | None:
    """What tokenises for the models of a profile that name a tokenizer; None if none does. Raises
    InputError and MachineError."""
    named = {model.tokenizer for model in profile.models if model.tokenizer}
    if not named:
        return None
    from infctl.router.tokenizer import Cache, ModelTokenizer

    loaded = {path: ModelTokenizer(path, Cache()) for path in named}
    tokenizers = {
        name: loaded[model.tokenizer]
        for model in profile.models
        if model.tokenizer
        for name in (model.name, *model.aliases)
    }
    return Tokenising(router, tokenizers)
