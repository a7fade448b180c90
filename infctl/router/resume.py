"""The driver's part of continuing an answer: what is out, and the request for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from infctl.router.continuation import (
    CHAT,
    Joint,
    Sofar,
    Unsafe,
    body,
    check,
    decode_request,
    ending,
    room,
)  # fmt: skip
from infctl.router.framing import Events, Unchunk

if TYPE_CHECKING:
    from infctl.engine import Capabilities
    from infctl.router.upstream import Pool

_ASK_S = 2.0
_TRIMS_MAX = 4
"""How many tokens whose text is not out yet may hide in an event with text."""


class Resume:
    """One answer that an engine did not finish; `request` is the body of the client's request.
    Raises Unsafe where it has a shape that an engine may read otherwise than we would."""

    def __init__(self, path: bytes, request: bytes | bytearray) -> None:
        self._path = path
        self._chat = path == CHAT
        self._request = decode_request(request)
        self.sofar = Sofar()
        options = self._request.get("stream_options") or {}
        self._wants_usage = bool(options.get("include_usage"))

    def take(self, pieces: list[bytes]) -> None:
        """Take in what an engine sent, framing included. Raises Unsafe where nobody can go on."""
        self.sofar.take(Events().feed(Unchunk().feed(b"".join(pieces))))
        if not self.complete:
            check(self._request, self.sofar)

    @property
    def complete(self) -> bool:
        """Whether every token is out, so that no engine is needed."""
        left = room(self._request, self._chat, self.sofar)
        return self.sofar.finished or self.sofar.done or (left is not None and left <= 0)

    def ending(self) -> bytes:
        """What a complete answer still lacks."""
        return ending(self.sofar, self._chat, self._wants_usage)

    def joint(self) -> Joint:
        """Makes the next engine's events this stream's."""
        return Joint(self.sofar, self._wants_usage)

    async def body(self, pool: Pool, can: Capabilities) -> bytes | None:
        """The body for the engine that goes on; None when that finds nothing left to say.
        Raises Unsafe."""
        if self._path not in can.continues:
            raise Unsafe("this kind of engine cannot go on with an answer")
        if self.sofar.untold:
            await self._count(pool)
            if self.complete:
                return None
        exact = bool(self.sofar.ids) and not self._chat and await self._exact(pool)
        made = body(self._request, self._chat, self.sofar, exact)
        if can.stream_usage:
            made["stream_options"] = (made.get("stream_options") or {}) | {"include_usage": True}
        if self._path in can.stream_token_ids:
            made["return_token_ids"] = True
        return msgspec.json.encode(made)

    async def _count(self, pool: Pool) -> None:
        """Count the text's tokens where the first engine did not: each event had at least one."""
        sofar = self.sofar
        asked = {"prompt": sofar.text, "add_special_tokens": False}
        found = await self._ask(pool, "/tokenize", asked)
        count = found.get("count")
        if isinstance(count, int):
            sofar.tokens = max(sofar.tokens, count)

    async def _ask(self, pool: Pool, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """An engine's answer to a question about tokens; empty where it has none."""
        body = msgspec.json.encode(asked | {"model": self._request.get("model")})
        try:
            status, answer = await pool.post(path, body, _ASK_S)
            found = msgspec.json.decode(answer) if status == 200 else None
        except (OSError, msgspec.DecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    async def _exact(self, pool: Pool) -> bool:
        """Whether the token ids may stand for the text, perhaps without the last ones: an event
        with text may hide the beginning of a character, or what was held back for a stop string.
        Where a token ends within a character, greedy decoding says that character again."""
        sofar, ids = self.sofar, self.sofar.ids or []
        for trim in range(min(_TRIMS_MAX, len(ids)) + 1):
            kept = ids[: len(ids) - trim]
            text: Any = ""
            if kept:
                found = await self._ask(pool, "/detokenize", {"tokens": kept})
                text = found.get("prompt", found.get("text"))
            if not isinstance(text, str):
                return False
            greedy = trim > 0 and self._request.get("temperature") == 0
            if sofar.text == text or (greedy and sofar.text.startswith(text)):
                sofar.overlap = sofar.text[len(text) :]
                sofar.ids, sofar.tokens = kept, sofar.tokens - trim
                return True
        return False
