"""Metrics of endpoints: what each did for this router's clients, and what it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from infctl.core.fleet import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric

    from infctl.core.director import Director
    from infctl.core.fleet import Endpoint
    from infctl.core.histogram import Histogram
    from infctl.core.life import Life
    from infctl.router.stats import EndpointStats
    from infctl.router.telemetry import Telemetry

_LABELS = ("endpoint", "pool")


class EndpointMetrics:
    """The series labelled with an endpoint and its pool."""

    def __init__(self, telemetry: Telemetry, director: Director, lives: Mapping[int, Life]) -> None:
        self._telemetry = telemetry
        self._lives = lives
        self._director = director

    def collect(self) -> Iterator[Metric]:
        """Every series."""
        yield from self._per_endpoint()
        yield from self._latencies()
        yield from self._loads()
        yield from self._states()

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
            "stalls_suspected": ("Silences it was probed for", lambda s: s.stalls_suspected),
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
            "time_per_output_token": ("Of a stream, on average", lambda s: s.token_time),
            "stream_longest_gap": ("Longest wait between its reads", lambda s: s.longest_gap),
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
