"""Forecasts, groups of refusals and effective settings, as plain functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guard.gateway.dashboard.forecasts import Forecast, forecast
from guard.gateway.dashboard.formatting import dated, share
from guard.gateway.dashboard.refusal_groups import grouped
from guard.gateway.domain.records import BalanceView
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, Refused, UsedLately
from guard.gateway.effective_settings import effective_settings
from guard.gateway.settings import GatewaySettings
from guard.gateway.settings_sources import load, origins

NOW = 1_800_000_000_000 - 1_800_000_000_000 % DAY_MS + 12 * HOUR_MS
"""Noon of some day."""


def balance(**fields: Any) -> BalanceView:
    """Return a balance of the day, half of which is over."""
    given: dict[str, Any] = {
        "balance_id": 1, "budget_id": "b", "scope_kind": "workflow", "scope_id": "w",
        "window": "day", "epoch_ms": NOW - 12 * HOUR_MS, "ends_ms": NOW + 12 * HOUR_MS,
        "mode": "hard", "limit": 100, "committed": 50, "reserved": 0,
        "remaining": 50, "overshoot": 0, "limit_cents": 0.0,
        "committed_cents": 0.0, "reserved_cents": 0.0, "exhausted": False,
    }  # fmt: skip
    return BalanceView(**{**given, **fields})


def used(hours_ago: int, number: int) -> UsedLately:
    return UsedLately(
        since_ms=NOW - hours_ago * HOUR_MS, cost_nanousd=number, tokens=2 * number, calls=1
    )


LASTS = Forecast(None, "last day")


@pytest.mark.parametrize(
    ("fields", "lately", "expected"),
    [
        # 30 in ten hours: 50 more take another 16 h 40 min, and the window ends before.
        ({}, [used(10, 10), used(1, 20)], LASTS),
        ({}, [used(2, 50)], Forecast(NOW + 2 * HOUR_MS, "last day")),
        ({"unit": "tokens"}, [used(2, 50)], Forecast(NOW + HOUR_MS, "last day")),
        ({"unit": "calls", "limit": 52}, [used(2, 0), used(1, 0)],
         Forecast(NOW + 2 * HOUR_MS, "last day")),
        ({"window": "total", "ends_ms": None}, [used(4, 25)],
         Forecast(NOW + 8 * HOUR_MS, "last day")),
        ({}, [used(0, 50)], None),  # it began in this hour
        ({"window": "total", "ends_ms": None}, [], None),
        ({"window": "total", "ends_ms": None, "limit": 10**9}, [used(4, 1)], None),
        ({"committed": 100}, [used(2, 50)], None),
        ({"committed": 130}, [used(2, 50)], None),
        ({"exhausted": True}, [used(2, 50)], None),
        ({"limit": 0}, [], None),
        # Of tags nothing is summed: by the window so far.
        ({"scope_kind": "tag", "committed": 80}, [],
         Forecast(NOW + 3 * HOUR_MS, "window so far")),
        ({"scope_kind": "tag", "committed": 10}, [], Forecast(None, "window so far")),
        ({"window": "hour", "epoch_ms": NOW - HOUR_MS // 2, "ends_ms": NOW + HOUR_MS // 2,
          "committed": 80}, [used(2, 50)],
         Forecast(NOW + HOUR_MS // 8, "last hour")),
        ({"window": "hour", "epoch_ms": NOW - 60_000, "ends_ms": NOW + HOUR_MS - 60_000},
         [used(2, 50)], None),
    ],
)  # fmt: skip
def test_a_forecast_is_made_where_there_is_enough_to_tell(
    fields: dict[str, Any], lately: list[UsedLately], expected: Forecast | None
) -> None:
    assert forecast(balance(**fields), lately, NOW) == expected


def test_a_share_is_whole_only_where_all_is_used() -> None:
    shown = [share(balance(committed=n, limit=1000)) for n in (0, 1, 999, 1000)]
    assert shown == ["0%", "<1%", "99%", "100%"]
    assert share(balance(limit=0, committed=0)) == "100%"


def refused(seq: int, **fields: Any) -> Refused:
    given: dict[str, Any] = {
        "refusal_seq": seq, "at_ms": seq, "workflow_id": "w", "run_id": None, "agent": None,
        "call_id": str(seq), "kind": "call", "function": "f", "tool_name": None, "model": None,
        "status": 402, "error_code": "GD-B004",
        "reason": f"budget exhausted: workflow w: ${seq}.5 of $2 spent; nothing would fit",
    }  # fmt: skip
    return Refused(**{**given, **fields})


def test_refusals_are_grouped_by_code_place_and_reason() -> None:
    first = [refused(5), refused(4), refused(3, call_id="4")]
    others = [
        refused(2, workflow_id="v"), refused(2, agent="a"), refused(2, function="g"),
        refused(2, model="m"), refused(2, error_code="GD-T001"), refused(2, reason="another"),
        refused(2, reason="budget exhausted: user 17: $1 of $2 spent"),
        refused(2, reason="budget exhausted: user 18: $1 of $2 spent"),
        refused(2, refused_by="budget of user 18"),
    ]  # fmt: skip
    found = grouped([*first, *others])
    assert [group.count for group in found] == [2, *(1 for _ in others)]
    assert (found[0].newest.refusal_seq, found[0].first_ms) == (5, 3)
    limited = "20 of 20 calls of search made", "21 of 20 calls of search made"
    assert len(grouped([refused(1, reason=text) for text in limited])) == 1


def test_settings_say_where_they_come_from_and_no_secret(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("retention_days = 30\nport = 1\nlog_level = 'info'\n")
    environ = {"GUARD_GATEWAY_PORT": "2", "GUARD_GATEWAY_FIRST_PASSWORD": "correct horse",
               "GUARD_GATEWAY_LOG_LEVEL": "error",
               "GUARD_GATEWAY_DATABASE": "postgresql://me:secret@db/guard?x=1"}  # fmt: skip
    options = {"log_level": "debug", "durable": None, "trusted_proxies": ()}
    settings = load(options, environ, config)
    found = {
        each.name: each for each in effective_settings(settings, origins(options, environ, config))
    }
    shown = {name: (found[name].value, found[name].origin) for name in found}
    assert shown["retention_days"] == ("30", f"file: {config}: retention_days")
    assert shown["port"] == ("2", "environment: GUARD_GATEWAY_PORT")
    assert shown["log_level"] == ("debug", "command line: --log-level")
    assert shown["durable"] == ("false", "default")
    assert shown["first_password"] == ("set", "environment: GUARD_GATEWAY_FIRST_PASSWORD")
    assert shown["first_admin_key"] == ("not set", "default")
    assert shown["database"][0] == "postgresql://db/guard"
    assert shown["poll_interval"] == ("1s", "default")
    assert "secret" not in str(shown.values())
    assert "horse" not in str(found)
    given = effective_settings(GatewaySettings(), {})
    assert {each.origin for each in given if each.name == "host"} == {"default"}


def test_moments_far_away_have_a_date() -> None:
    assert dated(NOW - 3 * DAY_MS, NOW).split()[-1] == "12:00:00"
    assert dated(10**18, NOW).startswith("31 Dec 9999")
    assert dated(None, NOW) == "–"
