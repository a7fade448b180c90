"""Canary prompts: whether an engine that says it is well also answers as it did at first.

An engine can wake, or restart, and answer 200 with garbage. So before it takes traffic it gets a
few short prompts, greedy, and its answers are compared with the first ones of the same model,
revision and kind of engine. Engines are not exact to the bit across batches, so a majority of the
answers has to agree, and that in their first tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from infctl import state
from infctl.errors import InfctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from pathlib import Path

    from infctl.core.fleet import Endpoint
    from infctl.engine import Engine
    from infctl.router.upstream import Pool

PROMPTS = (
    "The days of the week are Monday, Tuesday,",
    "One, two, three, four, five, six,",
    "def add(a, b):\n    return",
)
_TOKENS = 8
_CHARACTERS = 8
"""Answers agree when these first ones do: two tokens or so."""

_ANSWER_S = 30.0
_NOTHING_THERE = (404, 405, 501)
_PRINTS_MAX = 1000
_SHOWN = 40

Answers = tuple[str, ...]


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []


class Print(msgspec.Struct, frozen=True):
    """Answers taken for the truth, the endpoint that gave them, and whether another one agreed."""

    answers: Answers
    endpoint: str
    confirmed: bool = False


class _File(msgspec.Struct):
    run: float = 0.0
    prints: dict[str, Print] = {}
    format: int = 1


class Fingerprints:
    """The first answers, by model, revision and kind of engine; in a file once `keep` was called.
    At most 1,000, the oldest go first."""

    def __init__(self) -> None:
        self._prints: dict[str, Print] = {}
        self._path: Path | None = None
        self._run = 0.0

    def keep(self, path: Path, run: float) -> None:
        """Keep them in a file, so that they outlive the router. What another run of the fleet has
        left (`run` is when it began, epoch s) says nothing of this one."""
        self._path, self._run = path, run
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_File)
        except (OSError, msgspec.DecodeError):
            return
        if kept.run == run:
            self._prints = dict(kept.prints)

    def get(self, key: str) -> Print | None:
        """The first answers, None if there were none yet."""
        return self._prints.get(key)

    def put(self, key: str, answers: Print) -> None:
        """Take these for the truth. Raises MachineError if the file cannot be written."""
        if len(self._prints) >= _PRINTS_MAX and key not in self._prints:
            del self._prints[next(iter(self._prints))]
        self._prints[key] = answers
        if self._path is not None:
            state.write(self._path, msgspec.json.encode(_File(self._run, self._prints)))


class Canaries:
    """Asks engines, and judges what they answer. `log(event, **fields)` tells of oddities.

    The first answers may be the wrong ones. While no second endpoint has confirmed them, two others
    that agree with each other outvote them, and `outvoted(endpoint)` is called of who gave them.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        self.fingerprints = Fingerprints()
        self.outvoted: Callable[[str], None] = lambda endpoint: None
        self._rivals: dict[str, dict[str, Answers]] = {}
        self._log = log
        self._mute: set[str] = set()

    async def check(
        self, pool: Pool, endpoint: Endpoint, engine: Engine | None, *, anew: bool = False
    ) -> str | None:
        """What is wrong with the endpoint's answers, None if nothing is. `anew`: take them for
        the truth whatever was answered before, unless they are garbage."""
        exact = engine is not None and engine.capabilities.ignore_eos
        try:
            answers = await _all(_ask(pool, endpoint, prompt, exact) for prompt in PROMPTS)
        except OSError as error:
            what = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            return f"canaries failed: {what}"
        key = _key(endpoint)
        texts = tuple(answer for answer in answers if answer is not None)
        if len(texts) < len(answers):
            return self._completes_nothing(key, anew)
        return _garbage(texts) or self._compare(key, endpoint.id, texts, anew)

    def _completes_nothing(self, key: str, anew: bool) -> str | None:
        if self.fingerprints.get(key) is not None and not anew:
            return "it completes no prompts any more"
        if key not in self._mute and len(self._mute) < _PRINTS_MAX:
            self._mute.add(key)
            self._log("not_verified", model=key.partition("|")[0], note="it completes no prompts")
        return None

    def _compare(self, key: str, endpoint: str, texts: Answers, anew: bool) -> str | None:
        known = self.fingerprints.get(key)
        if known is None or anew or len(known.answers) != len(texts):
            self._trust(key, Print(texts, endpoint))
            return None
        if _same(known.answers, texts):
            if not known.confirmed and known.endpoint != endpoint:
                self._trust(key, Print(known.answers, known.endpoint, confirmed=True))
            return None
        if not known.confirmed and self._outvotes(key, endpoint, texts):
            self._log("fingerprint_outvoted", endpoint=known.endpoint, by=endpoint)
            self._trust(key, Print(texts, endpoint, confirmed=True))
            self.outvoted(known.endpoint)
            return None
        return _difference(known.answers, texts)

    def _outvotes(self, key: str, endpoint: str, texts: Answers) -> bool:
        """Whether another endpoint gave these answers as well; they are remembered if not."""
        if len(self._rivals) >= _PRINTS_MAX and key not in self._rivals:
            self._rivals.clear()
        rivals = self._rivals.setdefault(key, {})
        known = self.fingerprints.get(key)
        if known is not None and known.endpoint == endpoint:
            return False
        rivals[endpoint] = texts
        return any(_same(theirs, texts) for name, theirs in rivals.items() if name != endpoint)

    def _trust(self, key: str, answers: Print) -> None:
        self._rivals.pop(key, None)
        try:
            self.fingerprints.put(key, answers)
        except InfctlError as error:
            self._log("fingerprint_not_kept", error=str(error))


def _same(known: Answers, texts: Answers) -> bool:
    return sum(map(_agree, known, texts)) * 2 > len(known)


def _difference(known: Answers, texts: Answers) -> str:
    wrong = [pair for pair in zip(known, texts, strict=True) if not _agree(*pair)]
    expected, got = wrong[0]
    return (
        f"{len(wrong)} of {len(texts)} canary answers differ from the first ones: "
        f"{got[:_SHOWN]!r} instead of {expected[:_SHOWN]!r}"
    )


def _key(endpoint: Endpoint) -> str:
    """What two endpoints must share to give the same answers; those of no known revision share
    nothing with others."""
    model = endpoint.models[0] if endpoint.models else ""
    return "|".join((model, endpoint.revision or endpoint.id, endpoint.engine))


async def _all(asked: Iterable[Coroutine[None, None, str | None]]) -> list[str | None]:
    """All at the same time; when one fails, the others are given up."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _ask(pool: Pool, endpoint: Endpoint, prompt: str, exact: bool) -> str | None:
    """One answer, None from an engine that does not complete prompts. Raises OSError."""
    body: dict[str, Any] = {"model": endpoint.models[0], "max_tokens": _TOKENS}
    body |= {"temperature": 0, "seed": 0} | ({"ignore_eos": True} if exact else {})
    status, data = await _post(pool, "/v1/completions", body | {"prompt": prompt})
    if status in _NOTHING_THERE:
        messages = [{"role": "user", "content": prompt}]
        status, data = await _post(pool, "/v1/chat/completions", body | {"messages": messages})
    if 400 <= status < 500 or status in _NOTHING_THERE:
        return None
    if status != 200:
        raise ConnectionError(f"answered {status}")
    try:
        return _text(msgspec.json.decode(data, type=_Completion))
    except msgspec.DecodeError as error:
        raise ConnectionError(f"not an answer: {error}") from None


async def _post(pool: Pool, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    return await pool.post(path, msgspec.json.encode(body), _ANSWER_S)


def _text(completion: _Completion) -> str:
    for choice in completion.choices:
        if choice.message is not None:
            return (choice.message.reasoning_content or "") + (choice.message.content or "")
        return choice.text or ""
    return ""


def _agree(expected: str, got: str) -> bool:
    size = min(_CHARACTERS, len(expected), len(got))
    return size > 0 and expected[:size] == got[:size]


def _garbage(texts: Answers) -> str | None:
    """What is wrong with answers on their own account: most are empty, or all are one and the
    same character over and over, as a model whose numbers are all NaN answers."""
    if sum(not text.strip() for text in texts) * 2 > len(texts):
        return "most canary answers are empty"
    characters = {character for text in texts for character in text}
    if len(characters) == 1 and all(len(text) >= _TOKENS for text in texts):
        return f"every canary answer is {texts[0][:_SHOWN]!r}"
    return None
