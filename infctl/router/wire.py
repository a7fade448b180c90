"""HTTP/1.1 on the wire: request and response heads, chunked framing, ready-made answers.

llhttp (httptools, no leniencies) parses every head, so conflicting lengths, folded headers, bare
line ends, spaces before colons and bad chunking are refused rather than interpreted.
"""

from __future__ import annotations

from http import HTTPStatus

import httptools
import msgspec

HEAD_END = b"\r\n\r\n"

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"content-length",
    )
)
_REQUEST_DROPPED = _HOP_BY_HOP | {b"host", b"x-request-id"}
_PLAIN = (b"keep-alive", b"close")
"""What Connection says without naming other headers."""
_ROUTER_OWNED_PREFIX = b"x-data-parallel-"

JSON = b"application/json"

_HEADERS_MAX = 128
_TARGET_MAX = 8192


class BadRequest(Exception):
    """The client's bytes are not a request we accept; carries the answer's status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Head:
    """A parsed request head; also the parser's callbacks, so that nothing is copied twice.

    `headers` holds every header as it came, names in lower case; `fields` the first value of each.
    """

    __slots__ = (
        "_begun", "_parser", "_persistent", "body", "complete", "fields", "headers", "hosts",
        "method", "pipelined", "url", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, bytes] = {}
        self.hosts = 0
        self.body = bytearray()
        self.complete = False
        self.pipelined = False
        self.method = b""
        self.version = "1.1"
        self._begun = False
        self._persistent = False
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    # What follows a chunked body's end is another message: it must not leak into this one. Nor
    # must trailers, which come as headers do: no check of the head has seen them.

    def on_message_begin(self) -> None:
        self.pipelined = self.complete

    def on_url(self, url: bytes) -> None:
        if not self.complete:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._begun:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"host":
            self.hosts += 1
        self.fields.setdefault(name, value)

    def on_headers_complete(self) -> None:
        # Only here: once the message is complete, the parser has forgotten its Connection header.
        if not self._begun and self._parser is not None:
            self._begun = True
            self._persistent = bool(self._parser.should_keep_alive())

    def on_body(self, data: bytes) -> None:
        # Into one buffer: a list of tiny chunks would take many times the memory of their bytes.
        if not self.complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    def feed(self, data: bytes | memoryview) -> None:
        """Feed the head, or the chunked body behind it. Raises BadRequest."""
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BadRequest(400, "protocol upgrades are not supported") from None
        except (httptools.HttpParserError, ValueError) as error:
            raise BadRequest(400, f"malformed HTTP request: {error}") from None
        if not self.method:
            self.method = self._parser.get_method()
            self.version = self._parser.get_http_version()

    def parsed(self) -> None:
        """Nothing more is to be fed: let go of the parser, which refers back to this object."""
        self._parser = None

    def close_if_told(self) -> None:
        """`Connection: close` wins over `keep-alive`, which the parser prefers in HTTP/1.0."""
        said = b",".join(value for name, value in self.headers if name == b"connection")
        if b"close" in said.lower():
            self._persistent = False

    @property
    def keep_alive(self) -> bool:
        """Whether the connection can take another request."""
        return self._persistent and not self.pipelined

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header (name in lower case)."""
        return self.fields.get(name)


def parse_head(data: bytes) -> Head:
    """Parse a whole request head. Raises BadRequest."""
    head = Head()
    head.feed(data)
    if head.version != "1.1":
        _check_old(head)
    elif head.hosts != 1:
        raise BadRequest(400, "a request needs exactly one Host header")
    # The parser takes empty lines ahead, many spaces for one, and other protocols' names.
    if not data.startswith(b"%s %s HTTP/1." % (head.method, head.url)):
        raise BadRequest(400, "malformed HTTP request: a request line that is none")
    if len(data) > _HEADERS_MAX * 5:  # less cannot hold too many
        _check_bounds(head)
    return head


def _check_old(head: Head) -> None:
    if head.version != "1.0":
        raise BadRequest(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if head.hosts > 1:
        raise BadRequest(400, "a request has one Host header at most")
    head.close_if_told()


def _check_bounds(head: Head) -> None:
    if len(head.headers) > _HEADERS_MAX:
        raise BadRequest(431, f"more than {_HEADERS_MAX} headers")
    if len(head.url) > _TARGET_MAX:
        raise BadRequest(414, f"a request target over {_TARGET_MAX} bytes")


def check_coding(head: Head) -> None:
    """Raise BadRequest where a body comes in another coding than chunks."""
    coding = head.get(b"transfer-encoding") or b""
    if head.version == "1.0" or coding.strip().lower() != b"chunked":
        raise BadRequest(400, "the only transfer coding spoken here is HTTP/1.1's chunked")


def request_head(
    method: bytes,
    target: bytes,
    host: bytes,
    headers: list[tuple[bytes, bytes]],
    request_id: bytes,
    length: int,
) -> bytes:
    """The head sent to an endpoint: end-to-end headers only, one Content-Length, our request id."""
    parts = [method, b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]
    for name, value in headers:
        if name in _REQUEST_DROPPED or name.startswith(_ROUTER_OWNED_PREFIX):
            if name == b"connection" and value.lower() not in _PLAIN:
                ours = _end_to_end(headers)
                return request_head(method, target, host, ours, request_id, length)
            continue
        parts += (name, b": ", value, b"\r\n")
    parts += (b"x-request-id: ", request_id, b"\r\ncontent-length: %d\r\n\r\n" % length)
    return b"".join(parts)


def _end_to_end(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers without those that Connection names, nor Connection itself."""
    named = b",".join(value for name, value in headers if name == b"connection")
    dropped = {b"connection", *(name.strip().lower() for name in named.split(b","))}
    return [pair for pair in headers if pair[0] not in dropped]


class ResponseHead:
    """A parsed response head of an endpoint, and the end of the body behind it.

    The parser also follows chunked framing (without a callback per chunk), so that the bytes can
    be passed on as they came and the end still be seen.
    """

    __slots__ = (
        "_parser", "chunked", "done", "fault", "headers", "is_stream", "keep_alive", "length",
        "names", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self.chunked = False
        self.is_stream = False
        self.status = 0
        self.keep_alive = True
        self.done = False
        self.fault = ""
        self.names = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        if self.done:
            self.fault = "bytes after the end of a response"

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.done:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self.length = int(value)
        elif name == b"transfer-encoding":
            if self.chunked or value.lower() != b"chunked":
                self.fault = "a transfer coding other than chunked"
            self.chunked = True
        elif name == b"connection":
            self.names = self.names or value.lower() not in _PLAIN
        elif name == b"content-type":
            self.is_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        if self._parser is not None and not self.done:
            self.keep_alive = bool(self._parser.should_keep_alive())
            self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self.done = True

    def feed(self, data: bytes) -> None:
        """Parse the head, or follow a chunked body. Raises ValueError on anything malformed."""
        if self._parser is None:
            raise ValueError("bytes after the end of a response")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ValueError(f"malformed HTTP response: {error}") from None
        if self.fault:
            raise ValueError(self.fault)

    def follow(self, data: bytes) -> bytes:
        """Follow a chunked body; what of `data` belongs to it: the parser takes empty lines behind
        a message for nothing, clients may not. Raises ValueError on anything malformed."""
        if data[0] in b"\r\n" and not data.strip(b"\r\n"):
            return self._follow_slowly(data)
        self.feed(data)
        if self.done and (data[-5:-4] == b"\n" or not data.endswith(HEAD_END)):
            stripped = data.rstrip(b"\r\n")
            return data[: len(stripped) + 4]
        return data

    def _follow_slowly(self, data: bytes) -> bytes:
        for at in range(len(data)):
            self.feed(data[at : at + 1])
            if self.done:
                return data[: at + 1]
        return data

    def may_end(self) -> bool:
        """Whether so far the chunked body stands between two chunks. Asks the parser, which is of
        no use from then on."""
        try:
            self.feed(b"0\r\n\r\n")
        except ValueError:
            return False
        return self.done

    def parsed(self) -> None:
        """Nothing more is to be fed: let go of the parser, which refers back to this object."""
        self._parser = None


def response_head(
    response: ResponseHead, request_id: bytes, endpoint: bytes, framing: bytes, close: bool
) -> bytes:
    """The head sent to the client: the endpoint's end-to-end headers, our framing and identity."""
    status = response.status
    parts = [b"HTTP/1.1 %d %s\r\n" % (status, _reason(status))]
    for name, value in _end_to_end(response.headers) if response.names else response.headers:
        if name in _HOP_BY_HOP or name == b"x-request-id":
            continue
        parts += (name, b": ", value, b"\r\n")
    parts += (framing, b"x-request-id: ", request_id, b"\r\nx-infctl-endpoint: ", endpoint)
    parts.append(b"\r\nconnection: close\r\n\r\n" if close else b"\r\n\r\n")
    return b"".join(parts)


_REASONS = {s.value: s.phrase.encode() for s in HTTPStatus}


def _reason(status: int) -> bytes:
    return _REASONS.get(status, b"Unknown")


def answer(
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    request_id: bytes = b"",
    retry_after_s: int | None = None,
    close: bool = False,
    head_only: bool = False,
) -> bytes:
    """A complete response of our own."""
    parts = [
        b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n"
        % (status, _reason(status), content_type, len(body))
    ]
    if request_id:
        parts += (b"x-request-id: ", request_id, b"\r\n")
    if status == 401:
        parts.append(b"www-authenticate: Bearer\r\n")
    if retry_after_s is not None:
        parts.append(b"retry-after: %d\r\n" % retry_after_s)
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    if not head_only:
        parts.append(body)
    return b"".join(parts)


_ERROR_TYPES = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
}


def error_body(status: int, message: str) -> bytes:
    """The OpenAI-style error object that clients of the engines know."""
    kind = _ERROR_TYPES.get(status, "BadRequestError")
    error = {"message": message, "type": kind, "param": None, "code": status}
    return msgspec.json.encode({"error": error})


def dechunk(data: bytes) -> bytes:
    """The payload of a complete, well-framed chunked body."""
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end].partition(b";")[0], 16)
        if not size:
            return b"".join(parts)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size
