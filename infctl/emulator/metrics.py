"""/metrics in either dialect, from numbers kept as plain lists and rendered in one go."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from infctl.replica import ReplicaLoad

REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """A Prometheus histogram in seconds."""

    __slots__ = ("_bounds", "_counts", "_heads", "_labels", "_name", "_sum")

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._labels = labels
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        edges = [str(float(b)) for b in bounds] + ["+Inf"]
        self._heads = [f'{name}_bucket{{{labels},le="{edge}"}} ' for edge in edges]

    def observe(self, value_s: float, count: int = 1) -> None:
        """`count` observations of the same value."""
        self._counts[bisect_left(self._bounds, value_s)] += count
        self._sum += value_s * count

    def lines(self) -> list[str]:
        """The series as text."""
        totals = list(accumulate(self._counts))
        lines = [f"# TYPE {self._name} histogram"]
        lines += [f"{head}{total}.0" for head, total in zip(self._heads, totals, strict=True)]
        lines.append(f"{self._name}_sum{{{self._labels}}} {self._sum}")
        lines.append(f"{self._name}_count{{{self._labels}}} {totals[-1]}.0")
        return lines


_VLLM_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_VLLM_ITL = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_VLLM_E2E = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_SGLANG_TTFT = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0),
    *(100.0, 200.0, 400.0),
)
_SGLANG_ITL = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)
_SGLANG_E2E = (*_SGLANG_TTFT, 600.0, 1200.0, 1800.0, 2400.0)


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What the engine loop knows at the moment of a scrape."""

    load: ReplicaLoad
    asleep: bool
    sleep_level: int
    generated_per_s: float


class Metrics:
    """Counters and latencies of one engine, in engine time."""

    def __init__(self, dialect: str, model: str, block_size: int, blocks: int) -> None:
        self.dialect = dialect
        name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._prefix = dialect + ":"
        self._block_size = block_size
        self._blocks = blocks
        vllm = dialect == "vllm"
        rank = f'engine="0",model_name="{name}"'
        if not vllm:
            rank = (
                f'engine_type="unified",model_name="{name}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
            )
        self._labels = rank
        self._short = rank if vllm else f'engine_type="unified",model_name="{name}"'
        self.ttft = self._histogram("time_to_first_token", _VLLM_TTFT if vllm else _SGLANG_TTFT)
        self.itl = self._histogram("inter_token_latency", _VLLM_ITL if vllm else _SGLANG_ITL)
        self.tpot = self._histogram(
            "request_time_per_output_token", _VLLM_ITL if vllm else _SGLANG_ITL
        )
        self.e2e = self._histogram("e2e_request_latency", _VLLM_E2E if vllm else _SGLANG_E2E)
        self.finished = dict.fromkeys(REASONS, 0)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"{self._prefix}{name}_seconds", self._short, bounds)

    def render(self, now: Snapshot) -> bytes:
        """The text of /metrics."""
        lines = self._vllm(now) if self.dialect == "vllm" else self._sglang(now)
        for histogram in (self.ttft, self.itl, self.tpot, self.e2e):
            lines += histogram.lines()
        lines.append("")
        return "\n".join(lines).encode()

    def _vllm(self, now: Snapshot) -> list[str]:
        load = now.load
        lines = self._series(
            ("num_requests_running", "gauge", load.running),
            ("num_requests_waiting", "gauge", load.waiting),
            ("kv_cache_usage_perc", "gauge", load.kv_usage),
            ("prefix_cache_queries_total", "counter", load.prompt_tokens_total),
            ("prefix_cache_hits_total", "counter", load.cached_tokens_total),
            ("num_preemptions_total", "counter", load.preemptions_total),
            ("prompt_tokens_total", "counter", load.prompt_tokens_total),
            ("prompt_tokens_cached_total", "counter", load.cached_tokens_total),
            ("generation_tokens_total", "counter", load.generation_tokens_total),
        )
        states = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}
        level = now.sleep_level if now.asleep else 0
        lines.append("# TYPE vllm:engine_sleep_state gauge")
        for state, number in states.items():
            labels = f'{self._labels},sleep_state="{state}"'
            lines.append(f"vllm:engine_sleep_state{{{labels}}} {float(number == level)}")
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.finished.items():
            labels = f'{self._labels},finished_reason="{reason}"'
            lines.append(f"vllm:request_success_total{{{labels}}} {float(count)}")
        config = f'block_size="{self._block_size}",{self._labels},num_gpu_blocks="{self._blocks}"'
        lines.append("# TYPE vllm:cache_config_info gauge")
        lines.append(f"vllm:cache_config_info{{{config}}} 1.0")
        return lines

    def _sglang(self, now: Snapshot) -> list[str]:
        load = now.load
        prompt = load.prompt_tokens_total
        capacity = self._block_size * self._blocks
        lines = self._series(
            ("num_running_reqs", "gauge", load.running),
            ("num_queue_reqs", "gauge", load.waiting),
            ("num_used_tokens", "gauge", round(load.kv_usage * capacity)),
            ("token_usage", "gauge", load.kv_usage),
            ("cache_hit_rate", "gauge", load.cached_tokens_total / prompt if prompt else 0.0),
            ("gen_throughput", "gauge", now.generated_per_s),
            ("max_total_num_tokens", "gauge", capacity),
            ("num_retracted_requests_total", "counter", load.preemptions_total),
        )
        for name, value in (
            ("prompt_tokens_total", prompt),
            ("generation_tokens_total", load.generation_tokens_total),
            ("num_requests_total", sum(self.finished.values())),
        ):
            lines.append(f"# TYPE sglang:{name} counter")
            lines.append(f"sglang:{name}{{{self._short}}} {float(value)}")
        labels = f'cache_source="device",{self._short}'
        lines.append("# TYPE sglang:cached_tokens_total counter")
        lines.append(f"sglang:cached_tokens_total{{{labels}}} {float(load.cached_tokens_total)}")
        return lines

    def _series(self, *rows: tuple[str, str, float]) -> list[str]:
        lines = []
        for name, kind, value in rows:
            full = self._prefix + name
            lines.append(f"# TYPE {full} {kind}")
            lines.append(f"{full}{{{self._labels}}} {float(value)}")
        return lines
