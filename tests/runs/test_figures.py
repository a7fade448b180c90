import pytest

from infctl.runs.figures import FIGURES, Figure, signed

MS = Figure("TTFT", "ttft_ms.p50", "ms", "lower")
SHARE = Figure("hit", "prefix_hit_rate", "%", "higher", 1)
COUNT = Figure("errors", "errors", "", "lower")


@pytest.mark.parametrize(
    ("figure", "value", "base", "text", "change", "verdict"),
    [
        (MS, 1234.4, 2468.8, "1,234 ms", "−50 %", "good"),
        (MS, 600.0, 100.0, "600 ms", "×6.0", "bad"),
        (MS, 100.9, 100.0, "101 ms", "+1 %", ""),
        (SHARE, 0.285, 0.085, "28.5 %", "+20.0 pt", "good"),
        (SHARE, None, 0.1, "–", "–", ""),
        (COUNT, 0.0, 0.0, "0", "±0", ""),
        (COUNT, 4.0, 0.0, "4", "–", "bad"),
    ],
)
def test_how_figures_read(
    figure: Figure, value: float | None, base: float, text: str, change: str, verdict: str
) -> None:
    assert figure.text(value) == text
    assert figure.change(value, base) == change
    assert figure.verdict(value, base) == verdict


def test_counts_that_are_not_better_or_worse() -> None:
    requests = next(f for f in FIGURES if f.label == "Requests")
    assert (requests.change(10, 5), requests.verdict(10, 5)) == ("", "")


def test_signs() -> None:
    assert [signed(v, 1) for v in (1.25, -1.0, 0.01, -0.01)] == ["+1.2", "−1.0", "±0.0", "±0.0"]
