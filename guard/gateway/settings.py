"""Settings of one gateway process."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import attrs

from guard.core import wire


def _networks(_: Any, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for each in value:
        try:
            ipaddress.ip_network(each)
        except ValueError:
            raise ValueError(
                f"{attribute.name}: {each!r} is not an address or network, such as 10.0.0.0/8"
            ) from None


def _positive(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if value <= 0:
        raise ValueError(f"{attribute.name} must be positive")


@attrs.frozen(kw_only=True)
class GatewaySettings:
    """How a gateway listens, stores and defends itself.

    Args:
        database: the SQLite file.
        host: address to listen on; loopback by default, put a TLS proxy in front for others.
        port: 0 picks a free one.
        durable: sync each commit to the disk, so that power loss loses nothing.
        public_url: the URL that clients use, when a proxy stands in front; needed for signed
            requests, whose signature covers the URI.
        request_deadline_ms: how long a request's head and body may take to arrive.
        connections_max: connections at once; more are refused with 503.
        control_ping_interval_ms: how often the control channel sends a ping.
        sweep_interval_ms: how often reservations are expired when nothing else happens.
        retention_days: how long events, closed reservations, runs and the like are kept, and the
            current month at least; 0 keeps everything. Totals that the ledger needs stay.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
        drain_timeout_ms: how long open requests may take to finish at shutdown.
        max_batch_events, max_batch_bytes, max_event_bytes: limits of one request.
        max_pending_bytes: maximum bytes of in-flight requests; more are refused with 429. Event
            batches may use half of it.
        poll_wait_max_ms: longest wait of one control long poll.
        fallback_price: nano-dollars per million input and output tokens charged, and flagged,
            for models that nothing prices; never zero.
        trusted_proxies: addresses and networks of the proxies in front; from them alone the
            ``X-Forwarded-For`` header is trusted.
        private_webhooks: whether webhooks may go to loopback and private addresses.
        log_level: of the server's own logger.
    """

    database: Path
    host: str = "127.0.0.1"
    port: int = attrs.field(default=0, validator=attrs.validators.in_(range(65536)))
    durable: bool = False
    public_url: str | None = None
    request_deadline_ms: int = attrs.field(default=10_000, validator=_positive)
    connections_max: int = attrs.field(default=2000, validator=_positive)
    control_ping_interval_ms: int = attrs.field(default=15_000, validator=_positive)
    sweep_interval_ms: int = attrs.field(default=500, validator=_positive)
    retention_days: int = attrs.field(default=90, validator=attrs.validators.in_(range(36_501)))
    audit_retention_days: int = attrs.field(
        default=0, validator=attrs.validators.in_(range(36_501))
    )
    drain_timeout_ms: int = attrs.field(default=5000, validator=_positive)
    max_batch_events: int = attrs.field(default=1000, validator=_positive)
    max_batch_bytes: int = attrs.field(default=1_048_576, validator=_positive)
    max_event_bytes: int = attrs.field(default=65_536, validator=_positive)
    max_pending_bytes: int = attrs.field(default=33_554_432, validator=_positive)
    poll_interval_ms: int = attrs.field(default=1000, validator=_positive)
    poll_wait_max_ms: int = attrs.field(default=30_000, validator=_positive)
    fallback_input_per_mtok: int = attrs.field(default=15_000_000_000, validator=_positive)
    fallback_output_per_mtok: int = attrs.field(default=75_000_000_000, validator=_positive)
    trusted_proxies: tuple[str, ...] = attrs.field(default=(), validator=_networks)
    private_webhooks: bool = False
    log_level: str = "warning"

    def limits(self) -> wire.Limits:
        """Return the limits that the capabilities report."""
        return wire.Limits(
            max_batch_events=self.max_batch_events,
            max_batch_bytes=self.max_batch_bytes,
            max_event_bytes=self.max_event_bytes,
        )
