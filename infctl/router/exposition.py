"""The router's metrics as Prometheus text. Names are part of the public contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from infctl.core.commands import Shed
from infctl.core.fleet import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric

    from infctl.core.director import Director
    from infctl.core.fleet import Endpoint
    from infctl.core.life import Life
    from infctl.router.telemetry import EndpointStats, Histogram, Telemetry

_LABELS = ("endpoint", "pool")


def render(telemetry: Telemetry, director: Director, lives: Mapping[int, Life]) -> bytes:
    """The whole text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(telemetry, director, lives))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, telemetry: Telemetry, director: Director, lives: Mapping[int, Life]) -> None:
        self._telemetry = telemetry
        self._lives = lives
        self._director = director

    def collect(self) -> Iterator[Metric]:
        yield from self._per_endpoint()
        yield from self._latencies()
        yield from self._loads()
        yield from self._queue()
        yield from self._states()
        yield from self._router()

    def _rows(self) -> Iterator[tuple[int, Endpoint, EndpointStats, list[str]]]:
        for slot, endpoint in self._director.fleet:
            stats = self._telemetry.stats(endpoint.id)
            yield slot, endpoint, stats, [endpoint.id, endpoint.pool]

    def _per_endpoint(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "infctl_requests", "Requests answered", labels=(*_LABELS, "status")
        )
        for _, _, stats, labels in self._rows():
            for status, count in sorted(stats.statuses.items()):
                requests.add_metric([*labels, str(status)], count)
        yield requests
        counters: dict[str, tuple[str, Callable[[EndpointStats], float]]] = {
            "failed_legs": ("Attempts an endpoint failed", lambda s: s.failed_legs),
            "cut_streams": ("Streams an endpoint broke off", lambda s: s.cut_streams),
            "prompt_tokens": ("Prompt tokens, by the engines' usage", lambda s: s.prompt_tokens),
            "cached_tokens": ("Of these, served from KV cache", lambda s: s.cached_tokens),
            "output_tokens": ("Tokens generated", lambda s: s.output_tokens),
            "stream_events": ("Events passed on", lambda s: s.events),
            "canary_failures": ("Verifications not passed", lambda s: s.canary_failures),
            "restarts_asked": ("Restarts asked of its supervisor", lambda s: s.restarts_asked),
        }
        for name, (text, value) in counters.items():
            family = CounterMetricFamily(f"infctl_{name}", text, labels=_LABELS)
            for _, _, stats, labels in self._rows():
                family.add_metric(labels, value(stats))
            yield family

    def _latencies(self) -> Iterator[Metric]:
        histograms: dict[str, tuple[str, Callable[[EndpointStats], Histogram]]] = {
            "time_to_first_token": ("Arrival to first token, streams", lambda s: s.ttft),
            "request_duration": ("Arrival to end of answer", lambda s: s.duration),
        }
        for name, (text, value) in histograms.items():
            family = HistogramMetricFamily(f"infctl_{name}_seconds", text, labels=_LABELS)
            for _, _, stats, labels in self._rows():
                histogram = value(stats)
                family.add_metric(labels, list(histogram.cumulative()), histogram.total)
            yield family

    def _loads(self) -> Iterator[Metric]:
        fleet = self._director.fleet
        gauges = {
            "infctl_endpoint_ready": ("Whether the endpoint takes traffic", fleet.ready),
            "infctl_endpoint_inflight": ("Requests open there", fleet.inflight - fleet.foreign),
            "infctl_endpoint_running": ("Requests running, as reported", fleet.running),
            "infctl_endpoint_waiting": ("Requests waiting, as reported", fleet.waiting),
            "infctl_endpoint_kv_usage": ("Used share of KV cache, as reported", fleet.kv_usage),
        }
        for name, (text, column) in gauges.items():
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for slot, _, _, labels in self._rows():
                family.add_metric(labels, float(column[slot]))
            yield family
        missing = GaugeMetricFamily(
            "infctl_endpoint_missing_series", "Expected metrics an engine lacks", labels=_LABELS
        )
        for _, endpoint, _, labels in self._rows():
            missing.add_metric(labels, len(self._telemetry.missing_series.get(endpoint.id, ())))
        yield missing

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

    def _states(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "infctl_endpoint_state", "1 for the state it is in", labels=(*_LABELS, "state")
        )
        ejections = CounterMetricFamily(
            "infctl_ejections", "Times it was taken out", labels=(*_LABELS, "reason")
        )
        open_breakers = GaugeMetricFamily(
            "infctl_endpoint_breaker_open",
            "Whether it is out for failing or slow requests",
            labels=_LABELS,
        )
        for slot, _, stats, labels in self._rows():
            for state in State:
                value = float(self._director.fleet.states[slot] is state)
                states.add_metric([*labels, state.value], value)
            for reason, count in sorted(stats.ejections.items()):
                ejections.add_metric([*labels, reason], count)
            life = self._lives.get(slot)
            open_breakers.add_metric(labels, float(life is not None and life.statistical))
        yield from (states, ejections, open_breakers)

    def _router(self) -> Iterator[Metric]:
        telemetry, director = self._telemetry, self._director
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
        for name, text, counts in (
            ("infctl_refused", "Malformed or oversized requests", telemetry.refused),
            ("infctl_rejected", "Requests no endpoint could take", telemetry.rejected),
        ):
            family = CounterMetricFamily(name, text, labels=("status",))
            for status, count in sorted(counts.items()):
                family.add_metric([str(status)], count)
            yield family
        index, drift = director.index, director.experience.drift
        yield GaugeMetricFamily("infctl_prefix_index_blocks", "Blocks in the index", len(index))
        for name, text, value in (
            ("infctl_prefix_index_evicted", "Blocks evicted", index.evicted_total),
            ("infctl_prefix_predicted_tokens", "Hits predicted", drift.predicted_tokens),
            ("infctl_prefix_actual_tokens", "Hits reported by engines", drift.actual_tokens),
        ):
            yield CounterMetricFamily(name, text, value=value)
