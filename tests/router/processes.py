"""Router and engine processes, and clients that count every request they lose."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec

from infctl.cli.admin import UnixConnection
from infctl.timing import Decode, Prefill, TimingModel

FAST = TimingModel(
    prefill=Prefill(1.0, 0.0, 0.0),
    decode=Decode(2.0, 0.0, 0.0, 0.0),
    kv_capacity_tokens=200_000,
    source="made up",
)
"""2 ms a token."""


class Engine:
    """An emulated engine on a port that stays its own, so that it can start anew."""

    def __init__(self, port: int = 0) -> None:
        self.process, self.port = None, port  # type: ignore[assignment]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        timing = msgspec.json.encode(FAST).decode()
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "infctl.emulator", "--model", "m", "--timing-json", timing,
             "--port", str(self.port)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        ready = next(line for line in self.process.stderr if "ready on " in line)
        self.port = int(ready.strip().rpartition(":")[2])

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


class Router:
    """A router process."""

    def __init__(self, folder: Path, engines: list[Engine], *words: str, port: int = 0) -> None:
        self.admin = folder / "a.sock"
        self.log = folder / "router.log"
        argv = [sys.executable, "-P", "-m", "infctl", "router", "--port", str(port),
                "--admin", str(self.admin), *words]  # fmt: skip
        for engine in engines:
            argv += ["--endpoint", engine.url]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.port = 0

    def wait_ready(self) -> Router:
        """Until it says so."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready http://"), (line, self.log.read_text())
        self.port = int(line.strip().rpartition(":")[2])
        return self

    def ask(self, method: str, target: str) -> tuple[int, Any]:
        """One admin request."""
        return exchange(UnixConnection(str(self.admin)), method, target)

    def children(self) -> list[int]:
        """Its workers, in order of their numbers."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return sorted(map(int, text.split()), key=_worker_number)

    def stop(self) -> int:
        """End it; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        children = []
        with suppress(OSError):
            children = self.children()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def _worker_number(pid: int) -> int:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return int(json.loads(words[words.index(b"--worker") + 1])["number"])


def exchange(connection: HTTPConnection, method: str, target: str) -> tuple[int, Any]:
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def metric(port: int, name: str) -> float:
    """The sum of a metric's samples."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith(name))


@contextmanager
def engines(count: int) -> Iterator[list[Engine]]:
    """So many engines."""
    running: list[Engine] = []
    try:
        for _ in range(count):
            running.append(Engine())
        yield running
    finally:
        for engine in running:
            engine.stop()


@dataclass
class Load:
    """Keep-alive clients that send one request after another until told to stop.

    `lost` is what went wrong; `closed` counts requests on a kept connection that the router had
    closed before a byte of an answer, which HTTP lets a client send again, and these do.
    """

    port: int
    answered: int = 0
    closed: int = 0
    reconnects: int = 0
    lost: list[str] = field(default_factory=list)
    stopping: bool = False

    async def run(self, clients: int, streams: int, seconds: float | None = None) -> None:
        """Until `stopping`, or for so long."""
        work = [self._client(n, 4, 0.01 * (n % 5)) for n in range(clients)]
        work += [self._client(clients + n, 400, 0.0) for n in range(streams)]
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, setattr, self, "stopping", True)
        await asyncio.gather(*work)

    async def _client(self, number: int, tokens: int, pause_s: float) -> None:
        kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        turn = 0
        while not self.stopping:
            turn += 1
            reused = kept is not None
            try:
                if kept is None:
                    self.reconnects += 1
                    kept = await asyncio.open_connection("127.0.0.1", self.port)
                keeps = await self._once(*kept, f"{number}-{turn}", tokens)
            except (OSError, asyncio.IncompleteReadError, EOFError) as error:
                if reused and isinstance(error, EOFError) and error.args == ("idle",):
                    self.closed += 1
                else:
                    self.lost.append(f"{number}: {error!r}")
                keeps = False
            if not keeps and kept is not None:
                kept[1].close()
                kept = None
            await asyncio.sleep(pause_s)
        if kept is not None:
            kept[1].close()

    async def _once(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str, tokens: int
    ) -> bool:
        """One request; whether the connection stays open."""
        stream = tokens > 100
        body = json.dumps(
            {"model": "m", "prompt": text * 20, "max_tokens": tokens, "stream": stream,
             "ignore_eos": True}
        )  # fmt: skip
        head = f"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            writer.write((head + body).encode())
            first = await reader.read(1)
        except OSError as error:
            raise EOFError("idle") from error
        if not first:
            raise EOFError("idle")
        lines = (first + await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        answer = await _body(reader, headers)
        if " 200 " not in lines[0] or (stream and not answer.endswith(b"data: [DONE]\n\n")):
            self.lost.append(f"{lines[0]} {answer[-200:]!r}")
        self.answered += 1
        return headers.get("connection") != "close"


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    whole = b""
    while size := int(await reader.readline(), 16):
        whole += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return whole
