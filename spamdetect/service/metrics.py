"""Prometheus metrics, in a separate registry per application."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BOUNDS: Final = (*map(str, _SECONDS), "+Inf")


class _Times:
    """A histogram of seconds."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total_s = 0.0


class _Answers(Collector):
    """What every request changes, as plain numbers of the loop's thread.

    A counter of the library takes a lock and a microsecond for each change.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int, str], int] = {}
        self.times: dict[str, _Times] = {}
        self.verdicts = {True: 0, False: 0}

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "spamdetect_requests", "Answered requests.", labels=["endpoint", "status", "error_code"]
        )
        for (endpoint, status, error_code), count in self.requests.items():
            requests.add_metric([endpoint, str(status), error_code], count)
        yield requests
        seconds = HistogramMetricFamily(
            "spamdetect_request_seconds",
            "Seconds from the head of a request to its answer.",
            labels=["endpoint"],
        )
        for endpoint, times in self.times.items():
            buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
            seconds.add_metric([endpoint], buckets, times.total_s)
        yield seconds
        verdicts = CounterMetricFamily(
            "spamdetect_verdicts", "Texts classified.", labels=["verdict"]
        )
        verdicts.add_metric(["spam"], self.verdicts[True])
        verdicts.add_metric(["ham"], self.verdicts[False])
        yield verdicts


class Metrics:
    """The metrics for operators. Labels never hold a text, a key or anything a caller chooses."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = _Answers()
        self.registry.register(self._answers)
        self.pending = Gauge(
            "spamdetect_pending_requests", "Requests waiting for a worker.", registry=self.registry
        )
        self.busy = Gauge("spamdetect_busy_workers", "Workers at work.", registry=self.registry)
        self.wait_s = Gauge(
            "spamdetect_estimated_wait_seconds",
            "Estimated wait for a worker.",
            registry=self.registry,
        )
        self.model = Gauge(
            "spamdetect_model_info", "The loaded model.", ["version"], registry=self.registry
        )
        self.limit_fallbacks = Counter(
            "spamdetect_limit_fallbacks",
            "Requests counted in the process because Redis could not be reached.",
            registry=self.registry,
        )

    def answered(self, endpoint: str, status: int, error_code: str, seconds: float) -> None:
        """Count one answer; call it from the event loop's thread only."""
        found = self._answers
        slot = (endpoint, status, error_code)
        found.requests[slot] = found.requests.get(slot, 0) + 1
        times = found.times.get(endpoint)
        if times is None:
            times = found.times[endpoint] = _Times()
        times.counts[bisect_left(_SECONDS, seconds)] += 1
        times.total_s += seconds

    def classified(self, is_spam: bool) -> None:
        """Count one verdict; call it from the event loop's thread only."""
        self._answers.verdicts[is_spam] += 1

    def render(self) -> bytes:
        """The metrics in Prometheus's exposition format."""
        return generate_latest(self.registry)
