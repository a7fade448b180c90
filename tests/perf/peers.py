"""The routers that are compared: how each is installed and started, by its own README."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil

PACKAGES = ["sglang-router==0.3.2", "smg==1.13.0", "vllm-router==0.1.17"]


def install(folder: Path) -> Path:
    """The peers' own environment, made once; returns its bin folder."""
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    return folder / "bin"


def commands(bin_folder: Path, urls: list[str], port: int) -> dict[str, list[str]]:
    """Name → command line, each on a port of its own from `port` on."""
    ours = [sys.executable, "-m", "infctl", "router", "--port", str(port)]
    for url in urls:
        ours += ["--endpoint", url]
    common = ["--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1"]
    made = {"infctl": ours}
    for number, name in enumerate(("sglang-router", "smg"), start=1):
        made[name] = [
            str(bin_folder / name), "launch", *common, "--port", str(port + number),
            "--prometheus-port", str(port + 100 + number),
        ]  # fmt: skip
    made["vllm-router"] = [
        str(bin_folder / "vllm-router"), *common, "--port", str(port + 3),
        "--prometheus-port", str(port + 103),
    ]  # fmt: skip
    return made


@dataclass
class Peer:
    """A running router."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> tuple[float, float]:
        """(user, system) seconds of its process tree, ended children included."""
        user = system = 0.0
        root = psutil.Process(self.process.pid)
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            user += times.user + times.children_user
            system += times.system + times.children_system
        return user, system

    def rss_mb(self) -> float:
        """Resident memory of the process tree."""
        root = psutil.Process(self.process.pid)
        return sum(p.memory_info().rss for p in [root, *root.children(recursive=True)]) / 2**20

    def stop(self) -> None:
        """End it."""
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        for process in tree:
            process.terminate()
        _, alive = psutil.wait_procs(tree, timeout=5)
        for process in alive:
            process.kill()
        self.process.wait()


def start(name: str, argv: list[str], port: int, log: Path) -> Peer:
    """Start one router and wait until it answers a completion."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    peer = Peer(name, port, process)
    body = b'{"model":"mock","prompt":"hello","max_tokens":4}'
    for _ in range(150):
        if process.poll() is not None:
            break
        try:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                body,
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=2) as response:
                if response.status == 200:
                    return peer
        except OSError:
            time.sleep(0.2)
    if process.poll() is None:
        peer.stop()
    raise RuntimeError(f"{name} did not start: {log.read_text()[-2000:]}")
