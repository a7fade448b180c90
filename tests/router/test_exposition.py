"""What /metrics says after real traffic."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from infctl.profile.keyfile import Key
from infctl.router.keys import Keyring

from .conftest import SSE_HEAD, Seen, chunk, event, whole

STREAM = {"model": "m", "prompt": "Hello " * 100, "stream": True}


def series(router: Any) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its values of labels, in the labels' order."""
    text = router.metrics().decode()
    return {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


async def slow_stream(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(event(choices=[{"text": "a"}])))
    await writer.drain()
    await asyncio.sleep(0.12)
    writer.write(chunk(event(choices=[{"text": "b"}])))
    await writer.drain()
    await asyncio.sleep(0.02)
    usage = {"prompt_tokens": 150, "completion_tokens": 3}
    usage["prompt_tokens_details"] = {"cached_tokens": 30}  # type: ignore[assignment]
    writer.write(chunk(event(choices=[], usage=usage)) + chunk(b"data: [DONE]\n\n") + chunk(b""))


async def test_a_streams_tokens_predictions_and_names(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(slow_stream)
    async with start_router([engine]) as running:
        assert (await running.post("/v1/completions", STREAM))[0] == 200
        found = series(running.router)
    assert found["infctl_time_per_output_token_seconds_count", "u0", ""] == 1
    assert 0.06 < found["infctl_time_per_output_token_seconds_sum", "u0", ""] < 0.12
    assert 0.1 < found["infctl_stream_longest_gap_seconds_sum", "u0", ""] < 0.3
    assert found["infctl_model_requests_total", "m", "200"] == 1
    assert found["infctl_model_prompt_tokens_total", "m"] == 150
    assert found["infctl_model_time_to_first_token_seconds_count", "m"] == 1
    assert found["infctl_cached_prediction_error_tokens_sum", "above", ""] == 30
    assert found["infctl_prefix_error_tokens_total",] == 30
    assert found["infctl_prefix_index_drift_ratio",] == 0.2
    directions = [found["infctl_ttft_prediction_error_seconds_count", d, ""]
                  for d in ("above", "below")]  # fmt: skip
    assert sum(directions) == 1
    assert not any(name.startswith("infctl_tenant") for name, *_ in found)


async def test_strangers_names_make_no_series(start_engine: Any, start_router: Any) -> None:
    engine = await start_engine(slow_stream)
    async with start_router([engine]) as running:
        for number in range(3):
            body = {"model": f"x{number}", "prompt": "y"}
            assert (await running.post("/v1/completions", body))[0] == 404
        found = series(running.router)
    models = {labels[1:] for labels in found if labels[0] == "infctl_model_requests_total"}
    assert models == {("other", "404")}


async def test_tenants_come_from_keys_alone(start_engine: Any, start_router: Any) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'{"usage":{"prompt_tokens":7,"completion_tokens":2}}'))

    engine = await start_engine(answer)
    async with start_router([engine]) as running:
        router = running.router
        router.keys = Keyring(lambda: 0.0)
        secret = "sk-1"
        key = Key(
            name="k", sha256=sha256(secret.encode()).hexdigest(), tenant="acme",
            requests_per_minute=1,
        )  # fmt: skip
        router.keys.replace([(key, 0)], router.now())
        body = {"model": "m", "prompt": "y", "user": "evil"}
        first = await running.post("/v1/completions", body, Authorization=f"Bearer {secret}")
        second = await running.post("/v1/completions", body, Authorization=f"Bearer {secret}")
        assert (await running.post("/v1/completions", body))[0] == 401
        found = series(router)
    assert (first[0], second[0]) == (200, 429)
    tenants = {labels: n for labels, n in found.items() if labels[0].startswith("infctl_tenant_re")}
    assert tenants["infctl_tenant_requests_total", "200", "acme"] == 1
    assert tenants["infctl_tenant_requests_total", "429", "acme"] == 1
    assert found["infctl_tenant_prompt_tokens_total", "acme"] == 7
    assert found["infctl_tenant_request_duration_seconds_count", "acme"] == 1
    assert {"acme"} == {labels[-1] for labels in tenants if labels[0].endswith("count")}
