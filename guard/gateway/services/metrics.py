"""Metrics for Prometheus: plain counters on the hot path, collected on request.

A scrape reads numbers that are in memory, and asks the store for nothing. All families are listed
in ``docs/gateway/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from guard import gateway
from guard.core.wire import NANOUSD_PER_DOLLAR
from guard.gateway.domain.statistics import (
    SECONDS,
    Histogram,
    MoneySample,
    Spent,
    StoreStatistics,
)
from guard.gateway.services.fanout import Hub
from guard.gateway.services.load import Load

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "guard_gateway_"


class Counts:
    """Counters of this process. Used from the loop only."""

    __slots__ = ("gates", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, int], int] = {}
        # Seconds of each decision, from the complete body to the answer.
        self.gates = Histogram(SECONDS)

    def answered(self, route: str, status: int) -> None:
        """Count one answer."""
        key = (route, status)
        self.statuses[key] = self.statuses.get(key, 0) + 1


@attrs.frozen(eq=False)
class GatewayCollector(Collector):
    """Turns counts and the store's statistics into metric families.

    Args:
        counts: of answers and decisions.
        load: bytes of requests in flight.
        hub: the control channels.
        statistics: of the store; empty before it is open.
        connections: returns how many connections are open.
        waiting: returns how many calls wait in line.
        draining: returns whether the gateway is shutting down.
    """

    _counts: Counts
    _load: Load
    _hub: Hub
    _statistics: Callable[[], StoreStatistics]
    _connections: Callable[[], int]
    _waiting: Callable[[], int]
    _draining: Callable[[], bool]

    def collect(self) -> Iterable[Metric]:
        """Yield every family."""
        yield from self._process()
        store = self._statistics()
        if store:
            yield from _of_store(store)

    def _process(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(f"{_PREFIX}build_info", "1, by version", labels=["version"])
        build.add_metric([gateway.__version__], 1)
        yield build
        answers = CounterMetricFamily(
            f"{_PREFIX}answers", "Answers by route and status", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._counts.statuses.items()):
            answers.add_metric([route, str(status)], count)
        yield answers
        yield _histogram(
            "gate_seconds", "Time to decide a call, without the network", self._counts.gates
        )
        yield _gauge("connections", "Open connections", self._connections())
        yield _gauge("control_channels", "Open control channels", self._hub.count())
        yield _gauge("control_sockets", "Those of them that are sockets", self._hub.sockets())
        yield _gauge("pending_bytes", "Bytes of requests in flight", self._load.in_flight)
        yield _counter("overload_refusals", "Requests refused for load", self._load.refused)
        yield _gauge("waiting_calls", "Calls that wait in line for money", self._waiting())
        yield _gauge("draining", "1 while the gateway is shutting down", self._draining())


def _of_store(store: StoreStatistics) -> Iterator[Metric]:
    """Yield what the store counts; a store leaves out what it does not have."""
    for key, (family, name, text) in _STORE.items():
        if key in store:
            yield family(name, text, store[key])  # type: ignore[literal-required]
    if "leased_nanousd" in store:
        leased_usd = store["leased_nanousd"] / NANOUSD_PER_DOLLAR
        yield _gauge("leased_usd", "US dollars that leases hold", leased_usd)
    if "writer" in store:
        writer = store["writer"]
        yield _histogram("group_commands", "Commands in a transaction", writer.sizes)
        waits = "Time to begin a transaction: its locks, and the balances that it reads"
        yield _histogram("lock_wait_seconds", waits, writer.lock_waits)
        yield _histogram("commit_seconds", "Time to write back and commit", writer.commits)
        yield from _by_organisation(writer.organisations.read())
    if "money" in store:
        yield from _of_money(store["money"])
    if "tally" in store:
        yield from _of_decisions(store["tally"])
    pools = store.get("pools", {})
    if pools:
        for name, text, field in _POOLS:
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["pool"])
            for pool, use in pools.items():
                gauge.add_metric([pool], getattr(use, field))
            yield gauge
    for key, size in store.get("files", {}).items():
        name, text = _FILES[key]
        yield _gauge(name, text, size)


def _by_organisation(spent: Mapping[str, Spent]) -> Iterator[Metric]:
    """Yield what the commands of each organisation took; ``other`` is all that have no name."""
    for name, text, field in _ORGANISATIONS:
        family = CounterMetricFamily(_PREFIX + name, text, labels=["organisation"])
        for organisation_id, each in spent.items():
            family.add_metric([organisation_id or "other"], getattr(each, field))
        yield family


def _of_money(money: MoneySample) -> Iterator[Metric]:
    """Yield what organisations have spent, and the fullest budgets in their units."""
    for name, text, field in _SPENT:
        family = CounterMetricFamily(_PREFIX + name, text, labels=["organisation"])
        for organisation_id, spent in money.spent.items():
            amount = getattr(spent, field)
            amount = amount / NANOUSD_PER_DOLLAR if field == "nanousd" else amount
            family.add_metric([organisation_id or "other"], amount)
        yield family
    yield _gauge("budgets", "Budgets; the fullest of them are shown", money.budget_count)
    labels = ["organisation", "budget", "scope", "window", "unit"]
    for name, text, field in _BUDGETS:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
        for organisation_id, each in money.budgets:
            amount = getattr(each, field)
            amount = amount / NANOUSD_PER_DOLLAR if each.unit == "usd" else amount
            whose = [organisation_id, each.budget_id, each.scope_kind, each.window, each.unit]
            gauge.add_metric(whose, amount)
        yield gauge
    yield _gauge("budget_asks", "Calls that wait for a budget to be raised", money.asks)
    yield _gauge("approvals_pending", "Calls that wait for a person", money.approvals)


def _of_decisions(tally: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    found = dict(tally)  # the writer's thread may add to it meanwhile
    for kind, (name, text, label) in _DECISIONS.items():
        family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
        for (of, value), count in sorted(found.items()):
            if of == kind:
                family.add_metric([value], count)
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    total = 0
    buckets = []
    for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family = HistogramMetricFamily(_PREFIX + name, text)
    family.add_metric([], buckets, found.total)
    return family


_STORE: Final[dict[str, tuple[Callable[[str, str, float], Metric], str, str]]] = {
    "groups": (_counter, "commits", "Transactions of the store"),
    "items": (_counter, "commands", "Commands in those transactions"),
    "healthy": (_gauge, "store_healthy", "1 while the last commit succeeded"),
    "queued": (_gauge, "writer_queue_commands", "Commands that wait for the writer"),
    "open_reservations": (_gauge, "open_reservations", "Open reservations, leases included"),
    "leases": (_gauge, "leases", "Open leases"),
    "expired_reservations": (
        _counter, "expired_reservations", "Reservations that expired, leases included"
    ),
    "retention_lag_s": (
        _gauge, "retention_lag_seconds", "How long the oldest event has been due for deletion"
    ),
    "webhook_backlog": (
        _gauge, "webhook_backlog", "Webhook messages not delivered yet, counted up to 10000"
    ),
}  # fmt: skip
"""Plain numbers: their family, its name and its help."""

_POOLS: Final = (
    ("pool_connections_max", "Connections that a pool may have", "size"),
    ("pool_connections_in_use", "Connections that work now", "in_use"),
    ("pool_waiting", "Queries that wait for a connection", "waiting"),
)
_ORGANISATIONS: Final = (
    ("organisation_command_seconds", "Time of the writer that commands took", "seconds"),
    ("organisation_commands", "Commands that took it", "commands"),
)
_SPENT: Final = (
    ("spent_usd", "US dollars that were charged in all", "nanousd"),
    ("tokens", "Tokens of LLM requests in all", "tokens"),
    ("llm_requests", "LLM requests that were charged in all", "requests"),
)
_BUDGETS: Final = (
    ("budget_limit", "Limit", "limit"),
    ("budget_spent", "What was charged, of the fullest balance", "committed"),
    ("budget_set_aside", "What calls under way and leases hold of it", "reserved"),
    ("budget_uncertain", "What of it was charged in doubt", "uncertain"),
    ("budget_kept", "What of the limit is kept for winding down", "kept"),
)
_DECISIONS: Final = {
    "refusal": ("refusals", "Refused calls by error code", "code"),
    "directive": ("directives", "Kills, pauses, resumes and revives", "action"),
    "approval": ("approvals", "Approvals by what became of them", "status"),
    "loop": ("loops", "Runs that were flagged for repeats or accelerating spend", "kind"),
    "raise": ("budget_raises", "Raises of budgets", "unit"),
}
_FILES: Final = {
    "database": ("database_bytes", "Size of the database"),
    "log": ("log_bytes", "Size of the write-ahead log"),
}


def exposition(collector: Collector) -> bytes:
    """Return the metrics in Prometheus' text format, those of the process included."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return generate_latest(registry)
