"""Counts the proxy's requests and bytes, for ``/metrics``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    generate_latest,
)


class Counted:
    """Counts one request; at its end, by its last outcome.

    Args:
        counts: those of the proxy.
        vendor: the vendor's name in the path, from a bounded set: it becomes a label.
    """

    __slots__ = ("_counts", "_outcome", "_vendor")

    def __init__(self, counts: ProxyCounts, vendor: str) -> None:
        self._counts = counts
        self._vendor = vendor
        self._outcome = "failed"  # unless another is set before the end

    def received(self, size: int) -> None:
        """Count bytes of the request."""
        self._counts.bytes_in.inc(size)

    def sent(self, size: int) -> None:
        """Count bytes of the answer."""
        self._counts.bytes_out.inc(size)

    def answered(self) -> None:
        """Note that upstream's answer was sent to its end."""
        self._outcome = "answered"

    def refused(self, code: str) -> None:
        """Note a refusal, or the end of a stream by one."""
        self._outcome = "refused"
        self._counts.refusals.labels(self._vendor, code).inc()

    def left(self) -> None:
        """Note that the program has closed its connection."""
        self._outcome = "left"

    def close(self) -> None:
        """Count the request."""
        self._counts.requests.labels(self._vendor, self._outcome).inc()


class ProxyCounts:
    """Counters of one proxy."""

    MEDIA: Final = CONTENT_TYPE_LATEST.encode("ascii")

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "guard_proxy_requests",
            "Requests that have ended: answered, refused, left by the program, failed.",
            ("vendor", "outcome"),
            registry=registry,
        )
        self.refusals = Counter(
            "guard_proxy_refusals", "Refusals by code.", ("vendor", "code"), registry=registry
        )
        self.open_now = Gauge("guard_proxy_open_requests", "Open requests.", registry=registry)
        self.bytes_in = Counter(
            "guard_proxy_received_bytes", "Bytes of request bodies.", registry=registry
        )
        self.bytes_out = Counter(
            "guard_proxy_sent_bytes", "Bytes of answer bodies.", registry=registry
        )

    @contextlib.contextmanager
    def open(self, vendor: str) -> Iterator[Counted]:
        """Count one request while the block lasts."""
        counted = Counted(self, vendor)
        self.open_now.inc()
        try:
            yield counted
        finally:
            self.open_now.dec()
            counted.close()

    def text(self) -> bytes:
        """Return all counters in the format of Prometheus."""
        return generate_latest(self._registry)
