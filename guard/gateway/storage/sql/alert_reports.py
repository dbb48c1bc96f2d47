"""Queries of the watch over alerts: plain functions of a connection."""

from __future__ import annotations

import json
from typing import Final

from guard.core import wire
from guard.gateway.domain import alerts, records
from guard.gateway.domain.usage import HOUR_MS, QUARTER_MS
from guard.gateway.ledger.webhooks import WEBHOOKS_MAX
from guard.gateway.storage.sql.admin_rows import SELECT_BALANCE_VIEWS, balance_view_from_row
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import NAMED

FORECASTS_MAX: Final = 100
UNSEEN_MAX: Final = 100
_RECENT_MS: Final = HOUR_MS


def forecast_exhausted(
    connection: Connection, now_ms: int, organisation_id: str, percent: int
) -> list[records.BalanceView]:
    """Return balances that will reach a share of their limit, at the pace of their window so far.

    Only windows of which a tenth has passed, and budgets that have not reached their limit: those
    are exhausted, which is no forecast.
    """
    rows = connection.rows(
        f"{SELECT_BALANCE_VIEWS} budgets u JOIN balances b USING (budget_id)"
        " WHERE u.organisation_id = ? AND b.ends_ms > ? AND b.period_start_ms < ?"
        " AND b.committed > 0 AND b.committed < u.limit_amount"
        " AND (? - b.period_start_ms) * 10 >= b.ends_ms - b.period_start_ms"
        " AND CAST(b.committed AS DOUBLE PRECISION) * (b.ends_ms - b.period_start_ms) * 100"
        " >= CAST(u.limit_amount AS DOUBLE PRECISION) * ? * (? - b.period_start_ms)"
        " ORDER BY CAST(b.committed AS DOUBLE PRECISION) / max(u.limit_amount, 1) DESC,"
        " b.balance_id LIMIT ?",
        organisation_id, now_ms, now_ms, now_ms, percent, now_ms, FORECASTS_MAX,
    )  # fmt: skip
    return [balance_view_from_row(row) for row in rows]


def newest_refusals(
    connection: Connection, organisation_id: str, count: int
) -> list[tuple[int, str, str]]:
    """Return when, with which code and why the newest calls were refused, newest first."""
    return connection.rows(
        "SELECT at_ms, error_code, reason FROM refusals WHERE organisation_id = ?"
        " ORDER BY refusal_seq DESC LIMIT ?",
        organisation_id, count,
    )  # fmt: skip


def fallback_models(connection: Connection, now_ms: int, organisation_id: str) -> list[str]:
    """Return the models that were charged at fallback prices in this hour or the one before."""
    since_ms = now_ms - _RECENT_MS
    rows = connection.rows(
        "SELECT DISTINCT model FROM usage WHERE organisation_id = ?"
        f" AND scope_kind = 'organisation' AND size_ms = {QUARTER_MS} AND start_ms >= ?"
        " AND start_ms <= ? AND unpriced > 0 AND model <> ''",
        organisation_id, since_ms - since_ms % HOUR_MS, now_ms,
    )  # fmt: skip
    return sorted(row[0] for row in rows)


def uncounted_traffic(
    connection: Connection, now_ms: int, organisation_id: str
) -> list[tuple[str, str, str | None]]:
    """Return hosts whose requests programs could not meter within an hour, why, and where."""
    rows = connection.rows(
        "SELECT received_at_ms, data, workflow_id FROM events WHERE organisation_id = ?"
        " AND type = 'sdk.unseen' AND type NOT IN ('llm', 'span')"
        " ORDER BY event_seq DESC LIMIT ?",
        organisation_id, UNSEEN_MAX,
    )  # fmt: skip
    found: dict[str, tuple[str, str, str | None]] = {}
    for received_at_ms, text, workflow_id in rows:
        data = json.loads(text)
        host, why = data.get("host"), data.get("why")
        if received_at_ms >= now_ms - _RECENT_MS and isinstance(host, str) and host:
            found[host] = (host, why if isinstance(why, str) else "", workflow_id)
    return list(found.values())


def failure_recipients(connection: Connection) -> list[records.DueDelivery]:
    """Return a message without a body for each channel that reports a failed store.

    Read while the store works: when it has failed, the channels cannot be looked up.
    """
    rules: dict[str, list[alerts.AlertRule]] = {}
    for own, text in connection.rows("SELECT organisation_id, alert_rule FROM alert_rules"):
        rule = wire.decode(text, alerts.AlertRule)
        if rule.on == "unhealthy" and rule.enabled:
            rules.setdefault(own, []).append(rule)
    found = []
    for own, of_own in rules.items():
        rows = connection.rows(
            "SELECT webhook_id, url, secret, channel_kind, channel_options FROM webhooks"
            " WHERE organisation_id = ? AND enabled = 1 ORDER BY url LIMIT ?",
            own, WEBHOOKS_MAX,
        )  # fmt: skip
        for channel_id, url, secret, kind, options in rows:
            name = url.removeprefix(NAMED)
            if name == url or not any(not r.channels or name in r.channels for r in of_own):
                continue
            found.append(
                records.DueDelivery(
                    delivery_id="", organisation_id=own, url=url, secret=secret,
                    type="gateway.unhealthy", body="", created_at_ms=0, attempts=0,
                    channel_id=channel_id, kind=kind, options=options,
                )
            )  # fmt: skip
    return found
