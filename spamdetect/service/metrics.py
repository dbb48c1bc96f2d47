"""Prometheus metrics, in a separate registry per application."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics for operators. Labels never hold a text, a key or anything a caller chooses."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "spamdetect_requests",
            "Answered requests.",
            ["endpoint", "status", "error_code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "spamdetect_request_seconds",
            "Seconds from the head of a request to its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        verdicts = Counter(
            "spamdetect_verdicts", "Texts classified.", ["verdict"], registry=self.registry
        )
        self._verdicts = {True: verdicts.labels("spam"), False: verdicts.labels("ham")}
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
        # labels() costs more than inc(): the children of the hot path are looked up once.
        self._children: dict[tuple[str, int, str], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def answered(self, endpoint: str, status: int, error_code: str, seconds: float) -> None:
        """Count one answer."""
        slot = (endpoint, status, error_code)
        child = self._children.get(slot)
        if child is None:
            child = self._children[slot] = self._requests.labels(endpoint, str(status), error_code)
            self._timers.setdefault(endpoint, self._seconds.labels(endpoint))
        child.inc()
        self._timers[endpoint].observe(seconds)

    def classified(self, is_spam: bool) -> None:
        """Count one verdict."""
        self._verdicts[is_spam].inc()

    def render(self) -> bytes:
        """The metrics in Prometheus's exposition format."""
        return generate_latest(self.registry)
