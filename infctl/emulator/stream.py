"""One request's answer on its way out: what was sent, and how to send more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from infctl.emulator import wire

if TYPE_CHECKING:
    from infctl.emulator.prompt import Prompt
    from infctl.emulator.text import Speech
    from infctl.emulator.wire import Shape

_TOKENS_PER_WRITE = 4096


class Reply(Protocol):
    """Where an answer goes; a connection, or a stand-in for one."""

    paused: bool

    def send(self, status: int, body: bytes) -> None:
        """A whole JSON answer."""

    def open(self) -> None:
        """The head of an event stream."""

    def write(self, data: bytes) -> None:
        """More of an event stream."""

    def end(self, data: bytes) -> None:
        """The last of an event stream."""

    def abort(self) -> None:
        """Cut the connection."""


class Answer:
    """A request being answered. Positions count from the first output token.

    While it decodes, `offset` + the replica's steps are its tokens done;
    `counted` of them are in the metrics. `context` is the prompt with the whole answer, kept as
    long as somebody needs its text.
    """

    __slots__ = (
        "_end",
        "_events",
        "_interval",
        "_prompt_ids",
        "_speech",
        "arrived_ms",
        "cached",
        "context",
        "counted",
        "first_ms",
        "include_usage",
        "offset",
        "output_tokens",
        "prompt_tokens",
        "reason",
        "reply",
        "sent",
        "shape",
        "streamed",
    )

    def __init__(
        self,
        shape: Shape,
        prompt: Prompt,
        output_tokens: int,
        reason: str,
        reply: Reply,
        speech: Speech,
    ) -> None:
        self.shape = shape
        self.context: Prompt | None = prompt.followed_by(
            b"".join(speech.slice(prompt.tokens, prompt.tokens + output_tokens)), speech.width
        )
        self.prompt_tokens = prompt.tokens
        self.output_tokens = output_tokens
        self.reason = reason
        self.reply = reply
        self.cached = self.counted = self.sent = self.offset = 0
        self.arrived_ms = self.first_ms = 0.0
        self.streamed = self.include_usage = False
        self._speech = speech
        self._interval = 1
        self._prompt_ids: list[int] | None = None
        self._events: wire.Events | None = None
        self._end = False

    def stream(
        self, *, include_usage: bool, interval: int, prompt_ids: list[int] | None = None
    ) -> None:
        """Answer with events of `interval` tokens; with token ids, if the prompt's are given."""
        self.streamed = True
        self._prompt_ids = prompt_ids
        self.include_usage = include_usage
        self._interval = interval
        self._events = wire.events(self.shape)
        self.reply.open()

    def begin(self) -> None:
        """The first token is out; it is never held back."""
        if self._events is not None and self.output_tokens > 1 and not self.reply.paused:
            self.reply.write(self._events.opening + self._tokens(self._events, self._pieces(0, 1)))
            self.sent = 1

    def flush(self, done: int) -> int:
        """Send what is new among `done` tokens, the very last left to `finish`; how many."""
        if self._events is None or self.reply.paused:
            return 0
        done = min(done, self.output_tokens - 1, self.sent + _TOKENS_PER_WRITE)
        if self._interval > 1:
            done = 1 + (done - 1) // self._interval * self._interval
        new = done - self.sent
        if new <= 0:
            return 0
        opening = b"" if self.sent else self._events.opening
        self.reply.write(opening + self._tokens(self._events, self._pieces(self.sent, done)))
        self.sent = done
        return new

    def finish(self) -> bool:
        """All tokens are done: send the rest and the end. False: a slow reader has to catch up
        first, `resume` goes on."""
        self._end = True
        return self.resume()

    def resume(self) -> bool:
        """Go on after a slow reader caught up; True once everything is sent."""
        events = self._events
        if events is None:
            self.reply.send(200, wire.answer(self.shape, self._text(), self.reason, self.usage()))
            return True
        while self.flush(self.output_tokens - 1):
            pass
        if not self._end or self.reply.paused:
            return False
        rest = self._pieces(self.sent, self.output_tokens)
        parts = [b"" if self.sent else events.opening]
        if len(rest) > 1:
            parts.append(self._tokens(events, rest[:-1]))
        if self._prompt_ids is None:
            parts.append(events.last(rest[-1], self.reason))
        else:
            parts.append(events.told_last(rest[-1], self.reason, self._told_prompt(len(rest))))
        if self.include_usage:
            parts.append(events.usage(self.usage()))
        parts.append(wire.DONE)
        self.sent = self.output_tokens
        self.reply.end(b"".join(parts))
        return True

    def fail(self, status: int, message: str) -> None:
        """End with an error, inside the stream if there is one."""
        if self._events is None:
            self.reply.send(status, wire.error(self.shape.dialect, status, message))
        else:
            self.reply.end(wire.error_event(status, message) + wire.DONE)

    def cut_short(self, done: int) -> None:
        """End after `done` tokens with finish reason `abort`, as an aborted request does."""
        self.output_tokens = max(1, done, self.sent + (self._events is not None))
        self.reason = "abort"
        self.finish()

    def usage(self) -> wire.Usage:
        """Token counts of the whole answer."""
        return wire.Usage(self.prompt_tokens, self.output_tokens, self.cached)

    def _text(self) -> str:
        start = self.prompt_tokens
        return b"".join(self._speech.slice(start, start + self.output_tokens)).decode()

    def _tokens(self, events: wire.Events, pieces: list[bytes]) -> bytes:
        if self._prompt_ids is None:
            return events.tokens(pieces)
        return events.told(pieces, self._told_prompt(1))

    def _told_prompt(self, pieces: int) -> list[int] | None:
        """The prompt's ids for the answer's first event, which comes with so many others."""
        return self._prompt_ids if not self.sent and pieces == 1 else None

    def _pieces(self, start: int, end: int) -> list[bytes]:
        first = self.prompt_tokens
        tokens = self._speech.slice(first + start, first + end)
        step = self._interval
        if step == 1 or len(tokens) < 2:
            return tokens
        head = 1 if start == 0 else 0
        pieces = [tokens[0]] if head else []
        return pieces + [b"".join(tokens[i : i + step]) for i in range(head, len(tokens), step)]
