"""The figures of tables and reports: what each is called, how it reads, which way is good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from infctl.runs.result import Result, RunResult

Better = Literal["lower", "higher", ""]


class Figure(msgspec.Struct, frozen=True):
    """One row of a comparison: the path of its value in a run, its unit, its good direction."""

    label: str
    path: str
    unit: str
    better: Better
    decimals: int = 0

    def value(self, run: RunResult) -> float | None:
        """The figure of a run, None where it was not measured."""
        found: object = run
        for name in self.path.split("."):
            found = getattr(found, name)
        return found if isinstance(found, float) else _number(found)

    def text(self, value: float | None) -> str:
        """The value with its unit, for people."""
        if value is None:
            return "–"
        if self.unit == "%":
            return share(value, self.decimals)
        unit = f" {self.unit}" if self.unit else ""
        return f"{value:,.{self.decimals}f}{unit}"

    def change(self, value: float | None, base: float | None) -> str:
        """The change against another value: in points for shares, else in percent."""
        if not self.better:
            return ""
        if value is None or base is None:
            return "–"
        if self.unit == "%":
            return f"{signed((value - base) * 100, self.decimals)} pt"
        if not base:
            return "±0" if not value else "–"
        ratio = value / base
        return f"×{ratio:.1f}" if ratio >= 3 else f"{signed((ratio - 1) * 100, 0)} %"

    def verdict(self, value: float | None, base: float | None) -> Literal["good", "bad", ""]:
        """Whether a change is for the better; '' below two percent (or half a point)."""
        if value is None or base is None or not self.better:
            return ""
        margin = 0.005 if self.unit == "%" else 0.02 * abs(base)
        if abs(value - base) <= margin:
            return ""
        return "good" if (value < base) == (self.better == "lower") else "bad"


def share(value: float | None, decimals: int = 1) -> str:
    """A share as a percentage: `91.0 %`, – for none."""
    return "–" if value is None else f"{value * 100:.{decimals}f} %"


def milliseconds(value: float | None) -> str:
    """A time: `1,860 ms`, with decimals only where it has any below 10 ms; – for none."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:,.1f}"
    return f"{text} ms"


def signed(value: float, decimals: int) -> str:
    """A number with a true sign, and ± for what rounds to nothing."""
    text = f"{abs(value):,.{decimals}f}"
    if not float(text.replace(",", "")):
        return f"±{text}"
    return ("+" if value > 0 else "−") + text


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int) else None


FIGURES = (
    Figure("TTFT p50", "ttft_ms.p50", "ms", "lower"),
    Figure("TTFT p90", "ttft_ms.p90", "ms", "lower"),
    Figure("TTFT p99", "ttft_ms.p99", "ms", "lower"),
    Figure("TPOT p50", "tpot_ms.p50", "ms", "lower", 1),
    Figure("TPOT p90", "tpot_ms.p90", "ms", "lower", 1),
    Figure("TPOT p99", "tpot_ms.p99", "ms", "lower", 1),
    Figure("E2E p50", "e2e_ms.p50", "ms", "lower"),
    Figure("E2E p90", "e2e_ms.p90", "ms", "lower"),
    Figure("E2E p99", "e2e_ms.p99", "ms", "lower"),
    Figure("Output", "output_tokens_per_s", "tok/s", "higher"),
    Figure("Goodput at the SLO", "goodput", "req/s", "higher", 2),
    Figure("Requests within the SLO", "good_share", "%", "higher", 1),
    Figure("Prefix hit rate", "prefix_hit_rate", "%", "higher", 1),
    Figure("Requests", "requests", "", ""),
    Figure("Errors", "errors", "", "lower"),
)
HEADLINES = (
    *("TTFT p50", "TTFT p90", "TPOT p50", "E2E p50"),
    *("Goodput at the SLO", "Requests within the SLO", "Prefix hit rate", "Output"),
)


def workload_name(result: Result) -> str:
    """What a workload is called: its name, or its file's."""
    return result.workload.replace("\\", "/").rsplit("/", 1)[-1]


def simulated(result: Result) -> bool:
    """Whether the runs happened in virtual time."""
    return any(run.simulated for run in result.runs)


def run_name(run: RunResult) -> str:
    """What a run is called: its policy, or the address it was sent to."""
    return run.policy or run.url.removeprefix("http://").removeprefix("https://")
