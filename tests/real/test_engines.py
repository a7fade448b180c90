"""What clients may rely on when a real engine stands behind the router."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

CONTEXT_TOKENS = {"vllm": 2048, "sglang": 1024}
RUNNING = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}
GENERATED = {"vllm": "vllm:generation_tokens_total", "sglang": "sglang:generation_tokens_total"}
CONTROL = {
    "vllm": ["/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/pause", "/scale"],
    "sglang": ["/flush_cache", "/release_memory_occupation", "/freeze_gc", "/abort_request"],
}
SPELLINGS = ["{}", "/{}", "{}/", "/v1/..{}", "/v1/models/..{}", "{}?level=1", "/%2e{}", "/v1{}"]
VARYING = re.compile(rb'"(?:id|request_id)":"[^"]*"|"created":\d+(?:\.\d+)?')

only_vllm = pytest.mark.parametrize("fleet", ["vllm"], indirect=True, scope="module")


@pytest.fixture
def client(fleet: Any) -> Iterator[openai.OpenAI]:
    """The official client, pointed at the router."""
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def until(met: Callable[[], bool], seconds: float, what: str) -> None:
    """Fail unless it is met within so long."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, f"after {seconds:g} s not yet: {what}"
        time.sleep(0.05)


def words(name: str, count: int = 40) -> str:
    """A prompt of about 12 tokens a word that no other test shares a block with."""
    return " ".join(f"{name}-{number:06d}" for number in range(count))


def same(body: bytes) -> bytes:
    """An answer without what must differ between two of them."""
    return VARYING.sub(b"", body)


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert len(chunks) > 3
    assert len(text) > 8
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert last.usage
    assert last.usage.completion_tokens == 24


def test_a_whole_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0
    )
    assert answer.model == "tiny"
    assert answer.choices[0].message.content
    assert answer.usage
    assert answer.usage.completion_tokens == 8


def test_completions(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "tiny", "prompt": "Hello world", "temperature": 0}
    whole = client.completions.create(max_tokens=16, **ask).choices[0].text
    streamed = client.completions.create(max_tokens=16, stream=True, **ask)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == whole
    assert len(whole) > 4


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_second_time_the_prompt_is_cached(client: openai.OpenAI) -> None:
    counts = []
    for _ in range(2):
        usage = client.completions.create(
            model="tiny", prompt=words("cached"), max_tokens=4, temperature=0
        ).usage
        assert usage
        details = usage.prompt_tokens_details
        counts.append((details and details.cached_tokens) or 0)
    assert counts[0] < 33
    assert usage.prompt_tokens - 33 <= counts[1] < usage.prompt_tokens


def test_an_unknown_model_is_not_sent_on(fleet: Any, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.completions.create(model="nobody", prompt="x")


def test_a_prompt_too_long_is_refused_by_the_engine_in_its_own_words(fleet: Any) -> None:
    body = {"model": "tiny", "prompt": words("long", 400), "max_tokens": 4, "stream": True}
    routed = fleet.post(fleet.url, "/v1/completions", body)
    assert routed == fleet.post(fleet.engine_url, "/v1/completions", body)
    assert routed[0] == 400
    assert str(CONTEXT_TOKENS[fleet.engine]) in routed[1].decode()


def test_answers_are_the_engines_to_the_byte(fleet: Any) -> None:
    for path, prompt in (
        ("/v1/completions", {"prompt": words("bytes")}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": words("bytes")}]}),
    ):
        body = {"model": "tiny", "temperature": 0, "max_tokens": 64} | prompt
        fleet.post(fleet.engine_url, path, body)  # so that both find the prompt in the cache
        direct = fleet.post(fleet.engine_url, path, body)
        routed = fleet.post(fleet.url, path, body)
        assert direct[0] == 200
        assert (routed[0], same(routed[1])) == (200, same(direct[1]))
        assert len(direct[1]) > 300


def events(answer: bytes) -> tuple[str, list[bytes]]:
    """The joined text of a stream of completions, and its events without choices."""
    lines = [line[6:] for line in answer.split(b"\n\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    parsed = [json.loads(line)["choices"] for line in lines[:-1]]
    text = "".join(choice["text"] for choices in parsed for choice in choices)
    return text, [same(line) for line in lines if b'"choices":[]' in line]


def test_streams_are_the_engines(fleet: Any) -> None:
    """How many tokens share an event is up to the engine's luck; what they say is not."""
    body = {"model": "tiny", "temperature": 0, "max_tokens": 48, "prompt": words("stream")}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    fleet.post(fleet.engine_url, "/v1/completions", body)
    direct = fleet.post(fleet.engine_url, "/v1/completions", body)
    routed = fleet.post(fleet.url, "/v1/completions", body)
    assert (direct[0], routed[0]) == (200, 200)
    assert events(routed[1]) == events(direct[1])
    assert b'"usage":{' in events(routed[1])[1][0]


def test_control_endpoints_are_out_of_reach(fleet: Any, client: openai.OpenAI) -> None:
    for path in CONTROL[fleet.engine]:
        for spelling in SPELLINGS:
            status, _ = fleet.post(fleet.url, spelling.format(path), {})
            assert status == 404, spelling.format(path)
    assert client.completions.create(model="tiny", prompt="alive?", max_tokens=1).choices


@only_vllm
def test_the_engine_itself_does_serve_such_a_path(fleet: Any) -> None:
    assert fleet.post(fleet.engine_url, "/reset_prefix_cache", {})[0] == 200


def test_a_client_cannot_meddle_with_transfers(fleet: Any) -> None:
    """An engine that does transfers dies of such fields; one that does not still reads them, which
    a value of a wrong type shows."""
    field = {"vllm": "kv_transfer_params", "sglang": "bootstrap_room"}[fleet.engine]
    body = {"model": "tiny", "prompt": "Hello world", "max_tokens": 4, field: "mine"}
    assert fleet.post(fleet.engine_url, "/v1/completions", body)[0] == 400
    assert fleet.post(fleet.url, "/v1/completions", body)[0] == 200


def test_a_client_that_leaves_stops_its_generation(fleet: Any) -> None:
    generated = fleet.metric(fleet.engine_url, GENERATED[fleet.engine])
    asked = CONTEXT_TOKENS[fleet.engine] - 100
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": asked, "ignore_eos": True}
    with httpx.stream(
        "POST", f"{fleet.url}/v1/completions", json=body | {"stream": True}
    ) as answer:
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)
    running = RUNNING[fleet.engine]
    until(lambda: not fleet.metric(fleet.engine_url, running), 10, "no request running")
    assert fleet.metric(fleet.engine_url, GENERATED[fleet.engine]) - generated < asked * 0.8


def test_the_router_learns_what_is_cached(fleet: Any, client: openai.OpenAI) -> None:
    """Of a tokenizer with one byte a token it expects four at first."""
    names = [f"learn-{number}" for number in range(80)]
    ask: dict[str, Any] = {"model": "tiny", "prompt": words("learn"), "max_tokens": 1}
    for name in names:
        client.completions.create(**ask, extra_headers={"x-request-id": name})
    rows: dict[str, dict[str, str]] = {}

    def logged() -> bool:
        rows.update((row["id"], row) for row in fleet.requests_logged())
        return rows.keys() >= set(names)

    until(logged, 5, "in the access log")
    first, last = rows[names[0]], rows[names[-1]]
    assert (first["expected_cached_tokens"], first["cached_tokens"]) == ("0", "0")
    assert int(last["expected_cached_tokens"]) == pytest.approx(int(last["cached_tokens"]), rel=0.1)
    counted = fleet.metric(fleet.url, "infctl_prefix_actual_tokens_total")
    assert counted >= int(last["cached_tokens"]) * (len(names) - 1)


def ready_url(process: subprocess.Popen[str]) -> str:
    """The URL of `infctl router` once it is ready."""
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("ready "), line
    return line.split()[1]


def test_a_router_by_url_detects_the_engine(fleet: Any, tmp_path: Path) -> None:
    arguments = ("--endpoint", fleet.engine_url, "--port", "0", "--admin", str(tmp_path / "admin"))
    process = fleet.infctl.start("router", *arguments)
    try:
        url = ready_url(process)
        transport = httpx.HTTPTransport(uds=str(tmp_path / "admin"))
        with httpx.Client(transport=transport, base_url="http://admin") as admin:
            (endpoint,) = admin.get("/v1/fleet").json()["endpoints"]
        assert (endpoint["engine"], endpoint["models"]) == (fleet.engine, ["tiny"])
        assert endpoint["running"] is not None
        answer = fleet.post(
            url, "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2}
        )
        assert answer[0] == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_bench_run(fleet: Any, tmp_path: Path) -> None:
    trace = tmp_path / "few.jsonl"
    rows = [
        {"timestamp": n * 200, "input_length": 600, "output_length": 12, "hash_ids": [0, 1 + n % 2]}
        for n in range(10)
    ]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = fleet.infctl.run(
        *("bench", "run", fleet.url, "--workload", str(trace), "--out", str(tmp_path), "--json")
    )
    (run,) = json.loads(out)["runs"]
    assert (run["requests"], run["errors"]) == (10, 0)
    assert run["prefix_hit_rate"] > 0.5
    assert run["output_tokens_per_s"] > 0
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_sigterm_leaves_nothing_running(fleet: Any) -> None:
    """Last, because it ends what the others use."""
    assert len(fleet.processes) >= 3
    assert fleet.terminate() == 0
    fleet.until_nothing_runs(1)
    with pytest.raises(OSError):
        http.client.HTTPConnection(urlsplit(fleet.engine_url).netloc).connect()
