"""What answers teach of a model: bytes per token, usual output, how true predictions were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from infctl.core.events import Usage
    from infctl.core.request import Request

BYTES_PER_TOKEN = 4.0
"""Of a model that has not reported yet."""

ID_BYTES = 4.0
"""Of a token id, where blocks are hashes of those."""

_OUTPUT_TOKENS = 256.0
_KEEP = 0.95
_MODELS_MAX = 10_000
_KEEP_DRIFT = 0.99


class Drift(msgspec.Struct):
    """Predicted against actual prefix hits, in tokens, over requests whose engine told.

    `error_tokens` is the sum of how far each prediction was off, so that too much here and too
    little there do not cancel out. `recent_error` and `recent_prompt` are decayed sums.
    """

    requests: int = 0
    prompt_tokens: int = 0
    predicted_tokens: float = 0.0
    actual_tokens: int = 0
    error_tokens: float = 0.0
    recent_error: float = 0.0
    recent_prompt: float = 0.0

    def add(self, prompt: int, predicted: float, actual: int) -> None:
        """Take in one request's tokens."""
        predicted = min(predicted, prompt)
        error = abs(predicted - actual)
        self.requests += 1
        self.prompt_tokens += prompt
        self.predicted_tokens += predicted
        self.actual_tokens += actual
        self.error_tokens += error
        self.recent_error = self.recent_error * _KEEP_DRIFT + error
        self.recent_prompt = self.recent_prompt * _KEEP_DRIFT + prompt

    def share(self) -> float:
        """Of the prompt tokens of about the last 100 requests, those the index was wrong about."""
        return self.recent_error / self.recent_prompt if self.recent_prompt else 0.0


class Experience:
    """Learned per model from usage; bounded by the number of models."""

    def __init__(self) -> None:
        self.drift = Drift()
        self._sizes: dict[str, tuple[float, float]] = {}
        self._outputs: dict[str, float] = {}
        self._tokenised: set[str] = set()

    def bytes_per_token(self, model: str) -> float:
        """Learned from what engines report; 4 until they do."""
        sizes = self._sizes.get(model)
        return sizes[0] / sizes[1] if sizes else BYTES_PER_TOKEN

    def block_bytes(self, model: str) -> float:
        """What a token takes of what the model's blocks are hashes of."""
        return ID_BYTES if model in self._tokenised else self.bytes_per_token(model)

    def tokenised(self, model: str) -> None:
        """From now on the model's blocks are hashes of token ids."""
        if len(self._tokenised) < _MODELS_MAX:
            self._tokenised.add(model)

    def estimate(self, request: Request) -> float:
        """Fill in the request's prompt and output tokens; return what a token takes of what its
        blocks are hashes of. Learns nothing, so that anybody may ask."""
        ratio = self.bytes_per_token(request.model)
        counted = request.tokens or request.prompt_bytes / ratio
        request.prompt_tokens = counted + request.extra_tokens
        if request.token_blocks:
            ratio = ID_BYTES
        usual = self._outputs.get(request.model, _OUTPUT_TOKENS)
        request.output_tokens = min(usual, request.max_tokens) if request.max_tokens else usual
        return ratio

    def learn(self, request: Request, usage: Usage, predicted_tokens: float) -> None:
        """Take in what an engine said of an answered request; `predicted_tokens` of its prompt
        were expected to be cached."""
        prompt = usage.prompt_tokens
        if prompt and request.prompt_bytes and request.plain_text:
            self._learn_ratio(request.model, request.prompt_bytes, prompt)
        if prompt and usage.cached_tokens is not None:
            self.drift.add(prompt, predicted_tokens, usage.cached_tokens)
        tokens = usage.completion_tokens or 0
        usual = self._outputs.get(request.model)
        if usual is not None or len(self._outputs) < _MODELS_MAX:
            usual = tokens if usual is None else usual
            self._outputs[request.model] = usual * _KEEP + tokens * (1 - _KEEP)

    def _learn_ratio(self, model: str, prompt_bytes: int, tokens: int) -> None:
        """Decayed sums, so that a long prompt says more than a short one, whose template and
        JSON weigh as much as its text."""
        known = self._sizes.get(model)
        if known is None:
            if len(self._sizes) >= _MODELS_MAX:
                return
            known = (0.0, 0.0)
        keep = _KEEP
        size, count = known[0] * keep + prompt_bytes, known[1] * keep + tokens
        self._sizes[model] = (min(max(size, count * 0.5), count * 16.0), count)
