"""Answers for HTTP/1.0 clients, who know no chunks: buffered, and sent with a length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infctl.router.wire import dechunk, response_head

if TYPE_CHECKING:
    from infctl.router.wire import ResponseHead


class Legacy:
    """One answer on its way into memory, of at most `limit` bytes."""

    def __init__(self, response: ResponseHead, limit: int) -> None:
        self._response = response
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> bool:
        """Take in more; False when it is too much."""
        self._parts.append(data)
        self._size += len(data)
        return self._size <= self._limit

    def body(self) -> bytes:
        """All of the body, its framing undone."""
        raw = b"".join(self._parts)
        return dechunk(raw) if raw and self._response.chunked else raw

    def answer(self, request_id: bytes, endpoint: bytes, close: bool) -> bytes:
        """Head and body."""
        body = self.body()
        framing = b"content-length: %d\r\n" % len(body)
        return response_head(self._response, request_id, endpoint, framing, close) + body
