"""The simulator against a real engine: vLLM on this machine's CPU, calibrated, at three loads.

    INFCTL_VLLM_PYTHON=/path/to/vllm-env/bin/python python tests/real/truth.py

A random Llama of some seven million parameters, so that the engine and not HTTP takes the time. The
same trace of multi-turn sessions goes through the load generator to the engine itself, three times
at each load, and through the simulator with the timing model that `infctl calibrate` wrote. A
figure passes within 10 %, or within the engine's own spread over its runs where that is larger.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from infctl.bench.runner import run
from infctl.profile.model import Profile
from infctl.runs.result import RunResult
from infctl.runs.spec import RunSpec
from infctl.runs.summary import summarise
from infctl.sim.readings import done_share
from infctl.sim.run import prepare, simulate
from infctl.testing import tiny_model
from infctl.workload.sampling import Quantiles
from infctl.workload.sessions import SessionModel

LOADS = (0.4, 0.7, 0.95)
TOLERANCE = 0.1
HIDDEN, LAYERS = 320, 6
KV_BYTES = 512 << 20
CONTEXT_TOKENS = 2048
START_S = 180.0
FIGURES = {
    "TTFT p50": lambda r: r.ttft_ms.p50,
    "TTFT p90": lambda r: r.ttft_ms.p90,
    "TPOT p50": lambda r: r.tpot_ms.p50,
    "output tokens/s": lambda r: r.output_tokens_per_s,
    "hit rate": lambda r: r.prefix_hit_rate,
}
SESSIONS = SessionModel(
    rate_rps=1.0,
    hit_ceiling=0.5,
    input_tokens=Quantiles((0, 100), (0.5, 500), (0.9, 1200), (1, 1900)),
    output_tokens=Quantiles((0, 8), (0.5, 32), (1, 96)),
    growth_tokens=Quantiles((0, 20), (0.5, 150), (1, 500)),
    think_s=Quantiles((0, 2), (0.5, 10), (1, 40)),
    system_tokens=(64, 256),
    system_weights=(0.6, 0.4),
)


class Row(msgspec.Struct, frozen=True):
    """One figure at one load: the engine's runs, and the simulator's."""

    load: float
    figure: str
    measured: list[float]
    simulated: float

    @property
    def middle(self) -> float:
        """The median run."""
        return sorted(self.measured)[len(self.measured) // 2]

    @property
    def error(self) -> float:
        """Simulated over the median measured, less 1."""
        return self.simulated / self.middle - 1.0

    @property
    def spread(self) -> float:
        """From the lowest run to the highest, as a share of the median."""
        return (max(self.measured) - min(self.measured)) / self.middle

    @property
    def passes(self) -> bool:
        """Within ten percent or the engine's own spread."""
        return abs(self.error) <= max(TOLERANCE, self.spread)


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """A vLLM of its own; its address."""
    model = folder / "model"
    _make_model(model)
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    sets = (f"models.tiny.path={model}", f"engine.args.kv_cache_memory_bytes={KV_BYTES}")
    command = [sys.executable, "-m", "infctl", "up", "tiny-vllm", "--port", "0", "--json"]
    for each in sets:
        command += ["--set", each]
    with open(folder / "up.out", "w") as out, open(folder / "up.err", "w") as err:
        up = subprocess.Popen(command, env=env, stdout=out, stderr=err, cwd=folder)
        try:
            yield _ready(folder, up)
        finally:
            up.terminate()
            up.wait(60)


def _make_model(path: Path) -> None:
    sizes = {"_HIDDEN": HIDDEN, "_FEED_FORWARD": HIDDEN * 3, "_LAYERS": LAYERS}
    before = {name: getattr(tiny_model, name) for name in sizes}
    try:
        for name, value in sizes.items():
            setattr(tiny_model, name, value)
        tiny_model.make_tiny_model(path)
    finally:
        for name, value in before.items():
            setattr(tiny_model, name, value)


def _ready(folder: Path, up: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        lines = (folder / "up.out").read_text().splitlines()
        if lines:
            url = str(json.loads(lines[-1])["units"][0]["url"])
            with urllib.request.urlopen(f"{url}/v1/models", timeout=10):
                return url
        assert up.poll() is None, (folder / "up.err").read_text()
        time.sleep(0.5)
    raise AssertionError((folder / "up.err").read_text())


def trace(path: Path, count: int) -> None:
    """The sessions as a trace file, one request a second."""
    with path.open("w") as lines:
        for request in SESSIONS.requests(seed=11, limit=count):
            row: dict[str, Any] = {
                "at_s": round(request.at_s, 4),
                "segments": [[s.id & 0xFFFF_FFFF, s.tokens] for s in request.prompt],
                "output_tokens": request.output_tokens,
            }
            lines.write(json.dumps(row) + "\n")


def profile(timing: Path) -> Profile:
    """The engine as the simulator is told of it."""
    from infctl.compose import timing as read

    head = timing.read_text().split("max_num_batched_tokens: ")[1]
    args = {
        "block_size": 32,
        "max_num_batched_tokens": int(head.split(",")[0]),
        "kv_capacity_tokens": read(str(timing)).kv_capacity_tokens,
    }
    return Profile.model_validate(
        {
            "metadata": {"name": "real"},
            "models": [{"name": "tiny", "timing": str(timing), "context_tokens": CONTEXT_TOKENS}],
            "engine": {"args": args},
            "pools": [{"name": "p", "units": {"ready": 1}}],
            "routing": {"flow": {"hold": False}},
        }
    )


def saturation(fleet: Profile, spec: RunSpec) -> float:
    """The rate scale at which the simulated engine falls behind."""
    low, high, prepared = 0.5, 64.0, prepare(fleet, spec)
    for _ in range(9):
        middle = (low * high) ** 0.5
        samples = simulate(
            fleet, msgspec.structs.replace(spec, rate_scale=middle), prepared
        ).samples
        low, high = (low, middle) if done_share(samples) < 0.97 else (middle, high)
    return low


def compare(
    url: str, timing: Path, folder: Path, loads: tuple[float, ...], runs: int, count: int
) -> Iterator[tuple[Row, float]]:
    """Every figure at every load, and the client's share of a core in the median run."""
    path = folder / "trace.jsonl"
    trace(path, count)
    fleet, spec = profile(timing), RunSpec(url=url, workload=str(path))
    full = saturation(fleet, spec)
    for load in loads:
        at = msgspec.structs.replace(spec, rate_scale=round(full * load, 3))
        simulated = summarise(simulate(fleet, at), at)
        measured: list[RunResult] = []
        for _ in range(runs):
            _forget(url)
            measured.append(run(at))
        client = sorted(r.client.cpu_share for r in measured)[runs // 2]
        for figure, value in FIGURES.items():
            yield Row(load, figure, [value(r) for r in measured], value(simulated)), client


def _forget(url: str) -> None:
    """Empty the engine's prefix cache, as the simulated one is."""
    request = urllib.request.Request(f"{url}/reset_prefix_cache", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=30):
        pass


def calibrated(url: str, folder: Path) -> Path:
    """The timing model that `infctl calibrate` writes."""
    out = folder / "timing.yaml"
    command = [sys.executable, "-m", "infctl", "calibrate", url, "--out", str(out)]
    subprocess.run(command, check=True, timeout=900)
    return out


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    with TemporaryDirectory() as name, engine(Path(name)) as url:
        folder = Path(name)
        timing = calibrated(url, folder)
        print(timing.read_text())
        print("| load | figure | measured | simulated | error | spread | client CPU |")
        print("|---|---|---|---|---|---|---|")
        rows = compare(url, timing, folder, LOADS, options.runs, options.requests)
        for row, client in rows:
            runs = " / ".join(f"{value:.4g}" for value in row.measured)
            print(
                f"| {row.load} | {row.figure} | {runs} | {row.simulated:.4g} | {row.error:+.1%}"
                f"{'' if row.passes else ' (missed)'} | {row.spread:.1%} | {client:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
