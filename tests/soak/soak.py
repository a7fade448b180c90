"""Kill or stop a random engine every ten seconds, and count what clients notice.

    python tests/soak/soak.py [--seconds 1200] [--every 10] [--units 8] [--clients 32] [--json FILE]

`infctl up` runs emulated engines, whose every word is known beforehand: each answer is compared to
the last character, so that nothing missing, doubled or mixed up stays hidden. Most requests are
streams that can be continued; some are not streamed, some ask for what cannot be continued (log
probabilities) and must either be whole or end with an error event that says why. Every ten seconds
a random unit is killed with SIGKILL or stopped with SIGSTOP; supervisor and router do the rest.

Exit code 0: no request failed that could be continued, and every other failure is explained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from infctl.emulator import bodies
from infctl.emulator.text import Speech

PROFILE = """
apiVersion: infctl/v1
kind: Profile
metadata: {{name: soak}}
models: [{{name: m, context_tokens: 32768, timing: qwen3-8b-bf16-1xh100}}]
engine: {{type: emulated, args: {{max_num_seqs: 64, block_size: 16}}}}
pools: [{{name: p, units: {{ready: {units}}}}}]
"""
SPEECH = Speech(4)
STOP_SHARE = 0.5
PLAIN_SHARE, ODD_SHARE = 0.15, 0.1


@dataclass
class Tally:
    """What clients saw."""

    asked: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    slowest_gap_s: float = 0.0


def request(drawn: random.Random, number: int) -> tuple[str, str, dict[str, Any], str]:
    """(kind, path, body, the text of its answer)."""
    shared = f"system prompt {drawn.randrange(4)} " * 40
    prompt = f"{shared} question {number} " + "word " * drawn.randrange(200)
    tokens = drawn.randint(40, 400)
    body: dict[str, Any] = {"model": "m", "max_tokens": tokens, "ignore_eos": True}
    chat = drawn.random() < 0.5
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    path = "/v1/chat/completions" if chat else "/v1/completions"
    parsed = bodies.parse(json.dumps(body).encode(), chat=chat)
    start = bodies.prompt_of(parsed, chat=chat, bytes_per_token=4).tokens
    text = b"".join(SPEECH.slice(start, start + tokens)).decode()
    draw = drawn.random()
    if draw < PLAIN_SHARE:
        return "whole", path, body, text
    if draw < PLAIN_SHARE + ODD_SHARE:
        return "odd", path, body | {"stream": True, "logprobs": 1}, text
    options = {"stream_options": {"include_usage": True}} if drawn.random() < 0.5 else {}
    return "stream", path, body | {"stream": True} | options, text


class Client:
    """Sends one request after another until told to stop."""

    def __init__(self, url: str, tally: Tally, seed: int) -> None:
        self._url = url
        self._tally = tally
        self._drawn = random.Random(seed)
        self._number = seed * 1_000_000

    async def run(self, until: float) -> None:
        """Ask until then."""
        async with httpx.AsyncClient(timeout=httpx.Timeout(120, connect=5)) as client:
            while time.monotonic() < until:
                self._number += 1
                kind, path, body, text = request(self._drawn, self._number)
                self._tally.asked[kind] += 1
                name = f"soak-{self._number}"
                try:
                    trouble = await self._ask(client, path, body, text, name)
                except httpx.HTTPError as error:
                    trouble = f"{type(error).__name__}: {error}"
                self._note(kind, name, trouble)

    def _note(self, kind: str, name: str, trouble: str) -> None:
        tally = self._tally
        if not trouble:
            tally.whole[kind] += 1
        elif kind == "odd" and "not continued: " in trouble:
            tally.explained[trouble.partition("not continued: ")[2]] += 1
        else:
            tally.failed.append(f"{kind} {name}: {trouble}")
            print("FAILED", tally.failed[-1], flush=True)

    async def _ask(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], text: str, name: str
    ) -> str:
        """What was wrong with the answer; empty when nothing was."""
        headers = {"x-request-id": name}
        if not body.get("stream"):
            answer = await client.post(self._url + path, json=body, headers=headers)
            if answer.status_code != 200:
                return f"{answer.status_code} {answer.text[:300]}"
            choice = answer.json()["choices"][0]
            said = choice["text"] if "text" in choice else choice["message"]["content"]
            return "" if said == text else "another text"
        async with client.stream("POST", self._url + path, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                return f"{answer.status_code} {(await answer.aread())[:300]!r}"
            return await self._read(answer, body, text)

    async def _read(self, answer: httpx.Response, body: dict[str, Any], text: str) -> str:
        said, ids, done, usage = "", set(), 0, None
        last = time.monotonic()
        async for line in answer.aiter_lines():
            now = time.monotonic()
            self._tally.slowest_gap_s = max(self._tally.slowest_gap_s, now - last)
            last = now
            if not line:
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done += 1
                continue
            event = json.loads(data)
            if "error" in event:
                return str(event["error"]["message"])
            ids.add(event["id"])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                said += choice.get("text") or choice.get("delta", {}).get("content") or ""
        return verdict(said, text, len(ids), done, usage, body)


def verdict(
    said: str, text: str, ids: int, done: int, usage: dict[str, Any] | None, body: dict[str, Any]
) -> str:
    """What was wrong with a stream."""
    if said != text:
        at = next((n for n, (a, b) in enumerate(zip(said, text, strict=False)) if a != b), -1)
        return f"another text: {len(said)} of {len(text)} characters, first difference at {at}"
    if (ids, done) != (1, 1):
        return f"{ids} ids, {done} times [DONE]"
    if "stream_options" in body:
        tokens = usage and usage["completion_tokens"]
        return "" if tokens == body["max_tokens"] else f"usage says {tokens} tokens"
    return "" if usage is None else "usage that nobody asked for"


class Chaos:
    """Kills and stops units of a fleet."""

    def __init__(self, folder: Path, units: int, seed: int) -> None:
        self._units = [folder / "state/infctl/soak/units" / f"p-{n}" for n in range(units)]
        self._drawn = random.Random(seed)
        self.did: Counter[str] = Counter()

    async def run(self, every_s: float, until: float) -> None:
        """One victim every so often."""
        while time.monotonic() + every_s * 1.5 < until:
            await asyncio.sleep(every_s)
            self._strike()

    def _strike(self) -> None:
        self._drawn.shuffle(self._units)
        for folder in self._units:
            status = json.loads((folder / "status.json").read_text())["status"]
            if status["state"] == "ready":
                number = signal.SIGSTOP if self._drawn.random() < STOP_SHARE else signal.SIGKILL
                for pid in status["pids"]:
                    try:
                        os.killpg(os.getpgid(pid), number)
                    except ProcessLookupError:
                        continue
                self.did[signal.Signals(number).name] += 1
                return
        self.did["nobody was ready"] += 1


async def soak(url: str, folder: Path, options: argparse.Namespace) -> tuple[Tally, Chaos]:
    """Clients and chaos together."""
    tally, until = Tally(), time.monotonic() + options.seconds
    chaos = Chaos(folder, options.units, options.seed)
    clients = [Client(url, tally, options.seed + n).run(until) for n in range(options.clients)]
    await asyncio.gather(chaos.run(options.every, until), *clients)
    return tally, chaos


def wait_for(file: Path) -> str:
    """The router's URL, once the fleet is ready."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        line, newline, _ = file.read_text().partition("\n")
        if newline:
            return str(json.loads(line)["url"])
        time.sleep(0.1)
    raise TimeoutError("the fleet is not ready after 60 s")


def metrics(url: str) -> dict[str, float]:
    """The router's counters, summed over labels."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("infctl_") and "_bucket" not in name:
            found[name.partition("{")[0]] += float(value)
    return found


def report(tally: Tally, chaos: Chaos, counted: dict[str, float]) -> dict[str, Any]:
    """What is printed, and kept."""
    names = ("continuations", "retries", "failed_legs", "cut_streams", "streams_not_kept")
    return {
        "asked": dict(tally.asked),
        "whole": dict(tally.whole),
        "failed": tally.failed,
        "explained": dict(tally.explained),
        "chaos": dict(chaos.did),
        "longest_silence_s": round(tally.slowest_gap_s, 2),
        "router": {n: counted.get(f"infctl_{n}_total", 0.0) for n in names},
    }


def main() -> int:
    """Start the fleet, run the soak, stop the fleet, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--units", type=int, default=8)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "soak.yaml").write_text(PROFILE.format(units=options.units))
        env = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
        command = [sys.executable, "-m", "infctl", "up", "soak.yaml", "--port", "0", "--json"]
        with (folder / "up.jsonl").open("wb") as out:
            up = psutil.Popen(command, cwd=folder, env=env, stdout=out, stdin=-3)
        try:
            url = wait_for(folder / "up.jsonl")
            tally, chaos = asyncio.run(soak(url, folder, options))
            found = report(tally, chaos, metrics(url))
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)
        found["log"] = explain(folder, tally)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if tally.failed or not tally.whole["stream"] else 0


def explain(folder: Path, tally: Tally) -> list[str]:
    """The router's log lines about requests that failed."""
    names = {line.split()[1].rstrip(":") for line in tally.failed[:20]}
    log = (folder / "state/infctl/soak/router.log").read_text(errors="replace").splitlines()
    return [line for line in log if any(f"id={n} " in f"{line} " for n in names)][:200]


if __name__ == "__main__":
    sys.exit(main())
