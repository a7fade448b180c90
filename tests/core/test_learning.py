"""What answers teach, and its bounds."""

from __future__ import annotations

from infctl.core.events import Usage
from infctl.core.learning import Experience
from infctl.core.request import Request


def _request(size: int = 4000, **fields: object) -> Request:
    return Request(id="r", model="m", prompt_bytes=size, **fields)  # type: ignore[arg-type]


def test_an_estimate_uses_what_was_learned_and_the_clients_limit() -> None:
    known = Experience()
    request = _request(max_tokens=10)
    assert known.estimate(request) == 4.0
    assert (request.prompt_tokens, request.output_tokens) == (1000.0, 10.0)
    known.learn(request, Usage(2000, 60, 500), predicted_tokens=700.0)
    again = _request()
    assert known.estimate(again) == 2.0
    assert (again.prompt_tokens, again.output_tokens) == (2000.0, 60.0)
    assert (known.drift.predicted_tokens, known.drift.actual_tokens) == (700.0, 500)


def test_what_is_not_plain_text_teaches_nothing_of_bytes() -> None:
    known = Experience()
    known.learn(_request(plain_text=False), Usage(40, 5), predicted_tokens=0.0)
    assert known.bytes_per_token("m") == 4.0
