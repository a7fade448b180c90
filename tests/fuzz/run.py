"""The coverage-guided run: `python -m tests.fuzz.run --seconds 600`, from a checkout's root.

Needs atheris beside the package (`pip install -e '.[test,fuzz]'`, CPython 3.11 to 3.13). Every
target runs in a process of its own, instrumented in `infctl.router` and `infctl.core`; the corpus
is kept outside the checkout, so that the next run goes on from there. One JSON line a target says
how many inputs there were, how fast, and what was found; a finding's input stays beside the corpus
and is played alone by `--replay FILE`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TARGETS = {
    "client": "tests.fuzz.clients:Client",
    "body": "tests.fuzz.bodies:Bodies",
    "event": "tests.fuzz.events:Events",
    "stream": "tests.fuzz.streams:Streams",
    "world": "tests.fuzz.worlds:Worlds",
    "relay": "tests.fuzz.relays:Relays",
}
SEEDS = 64
_MEMORY_MB = 1500
_INPUT_S = 10


def target(name: str) -> Any:
    """A target's callable."""
    module, _, attribute = TARGETS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def seeds(folder: Path) -> None:
    """A first corpus: decisions at random, short and long."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    for number in range(SEEDS):
        (folder / f"seed-{number}").write_bytes(draw.randbytes(8 << number % 6))


def fuzz(name: str, arguments: list[str]) -> None:
    """This process fuzzes one target until libFuzzer ends it."""
    import atheris  # installed by the extra `fuzz`

    with atheris.instrument_imports(include=["infctl.router", "infctl.core"]):
        run = target(name)
    atheris.Setup([sys.argv[0], *arguments], run)
    atheris.Fuzz()


def drawn(name: str, seconds: int, runs: int | None, seed: int) -> dict[str, Any]:
    """Play one target with decisions at random, uninstrumented: blind, and many times as fast."""
    run, draw = target(name), random.Random(seed)
    inputs, data = 0, b""
    began = time.monotonic()
    row: dict[str, Any] = {"target": name, "seed": seed, "ok": True}
    try:
        while inputs < runs if runs else time.monotonic() - began < seconds:
            for _ in range(100):
                data = draw.randbytes(draw.choice((12, 30, 60, 120, 250)))
                run(data)
            inputs += 100
    except Exception as error:
        row |= {"ok": False, "finding": f"{error!r}"[:3000], "input": data.hex()}
    took_s = time.monotonic() - began
    return row | {
        "inputs": inputs,
        "seconds": round(took_s),
        "inputs_per_s": round(inputs / took_s),
    }


def measured(name: str, corpus: Path, bound: str) -> dict[str, Any]:
    """Fuzz one target in a process of its own; what came of it."""
    folder = corpus / name
    seeds(folder)
    options = [bound, f"-timeout={_INPUT_S}", f"-rss_limit_mb={_MEMORY_MB}", "-max_len=192"]
    options += [f"-artifact_prefix={corpus}/{name}-", "-print_final_stats=1", "-reload=0"]
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", name, *options, str(folder)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    took_s = time.monotonic() - began
    said = done.stderr + done.stdout
    found = re.search(r"number_of_executed_units: ([0-9]+)", said)
    inputs = int(found[1]) if found else 0
    covered = re.findall(r"cov: ([0-9]+)", said)
    row = {
        "target": name,
        "inputs": inputs,
        "seconds": round(took_s),
        "inputs_per_s": round(inputs / took_s),
        "covered": int(covered[-1]) if covered else 0,
        "ok": done.returncode == 0,
    }
    if done.returncode:
        row["finding"] = said[-3000:]
    return row


def main() -> None:
    """Run the targets asked for, one after the other."""
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--runs", type=int, help="inputs for each target, instead of seconds")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--corpus", type=Path, default=cache / "infctl-fuzz")
    parser.add_argument("--random", action="store_true", help="without coverage, much faster")
    parser.add_argument("--seed", type=int, default=1, help="of --random")
    parser.add_argument("--replay", type=Path, help="play this input of --target")
    asked = parser.parse_args()
    names = asked.target or list(TARGETS)
    if asked.replay:
        target(names[0])(asked.replay.read_bytes())
        return
    bound = f"-runs={asked.runs}" if asked.runs else f"-max_total_time={asked.seconds}"
    rows = []
    for name in names:
        if asked.random:
            rows.append(drawn(name, asked.seconds, asked.runs, asked.seed))
        else:
            rows.append(measured(name, asked.corpus, bound))
        print(json.dumps(rows[-1]), flush=True)
    if not all(row["ok"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
