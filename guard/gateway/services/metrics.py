"""Metrics for Prometheus: plain counters on the hot path, collected on request."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from guard.gateway.services.load import Load

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Counts:
    """Counters of this process. Used from the loop only."""

    __slots__ = ("buckets", "gate_seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, int], int] = {}
        self.buckets = [0] * (len(_BOUNDS_S) + 1)
        self.gate_seconds = 0.0

    def answered(self, route: str, status: int) -> None:
        """Count one answer."""
        key = (route, status)
        self.statuses[key] = self.statuses.get(key, 0) + 1

    def gated(self, seconds: float) -> None:
        """Count the time of a decision, from the complete body to the answer."""
        self.buckets[bisect.bisect_left(_BOUNDS_S, seconds)] += 1
        self.gate_seconds += seconds


class GatewayCollector(Collector):
    """Turns counts and the store's statistics into metric families."""

    def __init__(
        self,
        counts: Counts,
        load: Load,
        channels: Callable[[], int],
        statistics: Callable[[], dict[str, Any]],
    ) -> None:
        self._counts = counts
        self._load = load
        self._channels = channels
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """Yield every family."""
        answers = CounterMetricFamily(
            "guard_gateway_answers", "Answers by route and status", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._counts.statuses.items()):
            answers.add_metric([route, str(status)], count)
        yield answers
        yield self._latency()
        yield GaugeMetricFamily(
            "guard_gateway_control_channels", "Open control channels", self._channels()
        )
        yield GaugeMetricFamily(
            "guard_gateway_pending_bytes", "Bytes of requests in flight", self._load.in_flight
        )
        yield CounterMetricFamily(
            "guard_gateway_overload_refusals", "Requests refused for load", self._load.refused
        )
        yield from self._store()

    def _latency(self) -> Metric:
        total = 0
        buckets = []
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self._counts.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(
            "guard_gateway_gate_seconds", "Time to decide a call, without the network"
        )
        family.add_metric([], buckets, self._counts.gate_seconds)
        return family

    def _store(self) -> Iterator[Metric]:
        store = self._statistics()
        if not store:
            return
        yield CounterMetricFamily(
            "guard_gateway_commits", "Transactions of the store", store["groups"]
        )
        yield CounterMetricFamily(
            "guard_gateway_commands", "Commands in those transactions", store["items"]
        )
        yield GaugeMetricFamily(
            "guard_gateway_open_reservations", "Open reservations", store["open_reservations"]
        )
        yield GaugeMetricFamily(
            "guard_gateway_store_healthy", "1 while the last commit succeeded", store["healthy"]
        )


def exposition(collector: Collector) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
