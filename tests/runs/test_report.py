from html.parser import HTMLParser

import msgspec

from infctl.runs.report import render
from infctl.runs.result import Curves

VOID = {"meta", "br", "line", "rect"}


class Page(HTMLParser):
    """Checks nesting and gathers what a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]
        assert not any(k.startswith("on") for k, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_well_formed(make) -> None:
    text = render(make.result())
    page = Page(text)
    assert (page.open, page.links, page.scripts) == ([], [], 1)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    for part in (
        "Time to first token",
        "Output over time",
        "Open requests per endpoint",
        "Prefix hit rate by prompt length",
        "All figures",
        "Setting",
        "TTFT p99",
    ):
        assert part in page.text
    assert "infctl bench http://h" in page.text
    assert len(text) < 300_000


def test_text_from_outside_is_escaped(make) -> None:
    evil = '"><img src=x onerror=alert(1)><script>'
    result = make.result()
    runs = []
    for run in result.runs:
        endpoints = [msgspec.structs.replace(e, endpoint=evil) for e in run.per_endpoint]
        runs.append(
            msgspec.structs.replace(
                run,
                policy=evil,
                model=evil,
                url=evil,
                per_endpoint=endpoints,
                errors_by_kind={evil: 1},
                notes=[evil],
            )
        )
    page = Page(
        render(
            msgspec.structs.replace(result, runs=runs, workload=evil, command=evil, notes=[evil])
        )
    )
    assert (page.links, page.scripts) == ([], 1)
    assert evil in page.text


def test_one_run_without_anything_measured(make) -> None:
    result = make.result()
    bare = msgspec.structs.replace(
        result.runs[0],
        curves=Curves(),
        per_endpoint=[],
        prefix_hit_rate=None,
        ttft_ms=type(result.runs[0].ttft_ms)(),
    )
    page = Page(render(msgspec.structs.replace(result, runs=[bare])))
    assert "No request had a first token." in page.text
    assert "against" not in page.text


def test_a_failed_self_check_is_an_alarm(make) -> None:
    failed = msgspec.structs.replace(make.result().client, passed=False, reasons=["b: late sends"])
    page = Page(render(msgspec.structs.replace(make.result(), client=failed)))
    assert "self-check failed" in page.text
    assert "b: late sends" in page.text


def test_balance_is_over_the_whole_fleet(make) -> None:
    result = make.result()
    run = result.runs[-1]
    one = run.per_endpoint[0]
    idle = msgspec.structs.replace(one, endpoint="idle", requests=0, input_tokens=0,
                                   output_tokens=0)  # fmt: skip
    run = msgspec.structs.replace(run, per_endpoint=[one, idle])
    page = Page(render(msgspec.structs.replace(result, runs=[result.runs[0], run])))
    assert "2 endpoints, 1 without a request; the busiest served 2.00× the mean" in page.text


def test_tiles_show_what_may_get_worse_too(make) -> None:
    text = render(make.result())
    tiles = text[text.index('class="tiles"') : text.index('class="grid2"')]
    for label in ("TTFT p50", "TPOT p50", "E2E p50", "Output"):
        assert f"<p>{label}</p>" in tiles
