"""The router's metrics as Prometheus text. Names are part of the public contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from infctl.core.commands import Shed
from infctl.router.exposition_endpoints import EndpointMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from infctl.core.director import Director
    from infctl.core.life import Life
    from infctl.router.stats import Named
    from infctl.router.telemetry import Telemetry
    from infctl.router.tokenising import TokenisingStats


def render(
    telemetry: Telemetry,
    director: Director,
    lives: Mapping[int, Life],
    tokenising: TokenisingStats | None = None,
) -> bytes:
    """The whole text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(telemetry, director, lives, tokenising))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(
        self,
        telemetry: Telemetry,
        director: Director,
        lives: Mapping[int, Life],
        tokenising: TokenisingStats | None,
    ) -> None:
        self._tokenising = tokenising
        self._telemetry = telemetry
        self._lives = lives
        self._director = director

    def collect(self) -> Iterator[Metric]:
        yield from EndpointMetrics(self._telemetry, self._director, self._lives).collect()
        yield from _named("model", self._telemetry.models)
        yield from _named("tenant", self._telemetry.tenants)
        yield from self._accuracy()
        yield from self._queue()
        yield from self._router()
        yield from self._index()
        if self._tokenising is not None:
            yield from _tokenised(self._tokenising)

    def _accuracy(self) -> Iterator[Metric]:
        """Errors of predictions by pool and direction."""
        labels = ("pool", "direction")
        ttft = HistogramMetricFamily(
            "infctl_ttft_prediction_error_seconds",
            "How far a stream's expected time to first token was off: it came above or below",
            labels=labels,
        )
        cached = HistogramMetricFamily(
            "infctl_cached_prediction_error_tokens",
            "How far the expected cached tokens were off: the engine had more above or below",
            labels=labels,
        )
        for pool, accuracy in sorted(self._director.flights.accuracy.items()):
            for family, error in ((ttft, accuracy.ttft_s), (cached, accuracy.cached_tokens)):
                for direction, histogram in (("above", error.above), ("below", error.below)):
                    buckets = list(histogram.cumulative())
                    family.add_metric([pool, direction], buckets, histogram.total)
        yield from (ttft, cached)

    def _queue(self) -> Iterator[Metric]:
        classes, flow = self._telemetry.classes, self._director.flow
        requests = GaugeMetricFamily(
            "infctl_queued_requests", "Requests waiting at the router", labels=("priority",)
        )
        tokens = GaugeMetricFamily(
            "infctl_queued_tokens", "Their prompt and expected output tokens", labels=("priority",)
        )
        times = HistogramMetricFamily(
            "infctl_queue_time_seconds", "Time at the router of those that waited or were shed",
            labels=("priority",),
        )  # fmt: skip
        shed = CounterMetricFamily(
            "infctl_shed", "Requests flow control turned away", labels=("priority", "reason")
        )
        for (name, stats), (count, size) in zip(classes.items(), flow.waiting(), strict=True):
            requests.add_metric([name], count)
            tokens.add_metric([name], size)
            times.add_metric([name], list(stats.queue.cumulative()), stats.queue.total)
            for reason in Shed:
                shed.add_metric([name, reason.value], stats.shed[reason])
        yield from (requests, tokens, times, shed)

    def _router(self) -> Iterator[Metric]:
        telemetry = self._telemetry
        yield CounterMetricFamily(
            "infctl_retries", "Requests sent to another endpoint", value=telemetry.retries
        )
        yield CounterMetricFamily(
            "infctl_hedges", "Requests sent to a second endpoint too", value=telemetry.hedges
        )
        yield CounterMetricFamily(
            "infctl_hedges_won", "Hedges that answered first", value=telemetry.hedges_won
        )
        yield CounterMetricFamily(
            "infctl_continuations",
            "Broken streams that went on at another endpoint",
            value=telemetry.continued,
        )
        yield GaugeMetricFamily(
            "infctl_continuation_bytes",
            "Kept now so that another endpoint can go on with streams",
            value=telemetry.kept_bytes,
        )
        yield CounterMetricFamily(
            "infctl_streams_not_kept",
            "Streams too many to be continued, by limits.continuation_mib_max",
            value=telemetry.not_kept,
        )
        yield CounterMetricFamily(
            "infctl_unknown_paths", "Requests to paths not allowed", value=telemetry.unknown_paths
        )
        if (recorder := telemetry.recorder) is not None:
            yield GaugeMetricFamily(
                "infctl_recording", "Workers that write an event log", float(recorder.running)
            )
            yield CounterMetricFamily(
                "infctl_recorded_bytes", "Written to event logs", value=recorder.written_bytes
            )
        for name, text, counts in (
            ("infctl_refused", "Malformed or oversized requests", telemetry.refused),
            ("infctl_rejected", "Requests no endpoint could take", telemetry.rejected),
        ):
            family = CounterMetricFamily(name, text, labels=("status",))
            for status, count in sorted(counts.items()):
                family.add_metric([str(status)], count)
            yield family

    def _index(self) -> Iterator[Metric]:
        index, drift = self._director.index, self._director.experience.drift
        for gauge, text, now in (
            ("blocks", "Blocks in the index, once per endpoint", float(len(index))),
            ("drift_ratio", "Share of recent prompt tokens it was wrong about", drift.share()),
        ):
            yield GaugeMetricFamily(f"infctl_prefix_index_{gauge}", text, now)
        for name, text, value in (
            ("infctl_prefix_index_evicted", "Blocks evicted", index.evicted_total),
            ("infctl_prefix_predicted_tokens", "Hits predicted", drift.predicted_tokens),
            ("infctl_prefix_actual_tokens", "Hits reported by engines", drift.actual_tokens),
            ("infctl_prefix_error_tokens", "Sum of each prediction's error", drift.error_tokens),
            ("infctl_prefix_prompt_tokens", "Prompt tokens predicted of", drift.prompt_tokens),
        ):
            yield CounterMetricFamily(name, text, value=value)


def _tokenised(stats: TokenisingStats) -> Iterator[Metric]:
    """What became of prompts that were to be tokenised."""
    results = CounterMetricFamily(
        "infctl_tokenised_prompts", "By what was known in time", labels=("result",)
    )
    for result, count in stats.results.items():
        results.add_metric([result], count)
    times = HistogramMetricFamily("infctl_tokenising_seconds", "Time requests waited for it")
    times.add_metric([], list(stats.seconds.cumulative()), stats.seconds.total)
    yield from (results, times)
    for name, text, value in (
        ("tokenised_tokens", "Tokens made", stats.encoded_tokens),
        ("tokenised_known_tokens", "Tokens known from earlier prompts", stats.known_tokens),
        ("tokenizer_checked_requests", "Prompts whose engine told its count", stats.checked),
        ("tokenizer_error_tokens", "By how much those counts differ", stats.error_tokens),
    ):
        yield CounterMetricFamily(f"infctl_{name}", text, value=value)


def _named(label: str, figures: Named) -> Iterator[Metric]:
    """RED metrics of what there may be many of."""
    labels = (label,)
    requests = CounterMetricFamily(
        f"infctl_{label}_requests", f"Requests, by {label}", labels=(label, "status")
    )
    durations = HistogramMetricFamily(
        f"infctl_{label}_request_duration_seconds", "Arrival to end of answer", labels=labels
    )
    ttfts = HistogramMetricFamily(
        f"infctl_{label}_time_to_first_token_seconds", "Arrival to first token, streams",
        labels=labels,
    )  # fmt: skip
    prompts = CounterMetricFamily(
        f"infctl_{label}_prompt_tokens", "Prompt tokens, by the engines' usage", labels=labels
    )
    outputs = CounterMetricFamily(
        f"infctl_{label}_output_tokens", "Tokens generated", labels=labels
    )
    for name, red in figures.items():
        for status, count in sorted(red.statuses.items()):
            requests.add_metric([name, str(status)], count)
        durations.add_metric([name], list(red.duration.cumulative()), red.duration.total)
        ttfts.add_metric([name], list(red.ttft.cumulative()), red.ttft.total)
        prompts.add_metric([name], red.prompt_tokens)
        outputs.add_metric([name], red.output_tokens)
    yield from (requests, durations, ttfts, prompts, outputs)
