"""The details of an audit entry in words: money in dollars, moments as dates. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from guard.core.wire import amount_in, dollars
from guard.core.written_numbers import written_duration
from guard.gateway.dashboard.formatting import dated

_SILENT: Final = {
    "organisation_id", "created_at_ms", "updated_at_ms", "budget_id", "policy_id", "price_id",
    "unit", "name", "scope_kind", "scope_id", "window",
}  # fmt: skip
"""What says nothing to a reader: it is the entry's own, or the column beside it."""

_IN_UNIT: Final = {"limit", "by", "needed"}
"""Amounts of a budget, in its ``unit``."""

_MOMENT_MIN_MS: Final = 10**11
"""A number of milliseconds from here on is a moment, below it a length of time."""

_TEXT_MAX: Final = 300


_DID: Final = {
    "put": "set", "create": "added", "delete": "removed", "remove": "removed", "update": "changed",
    "revoke": "revoked", "rotate": "rotated", "raise": "raised", "answer": "answered",
    "role": "changed the role", "password": "set the password", "sign_in": "signed in",
    "kill": "killed", "pause": "paused", "resume": "resumed", "revive": "revived", "end": "ended",
    "link": "made a sign-in link", "test": "tested", "withdraw": "withdrew",
    "expire": "expired", "refuse": "refused a raise",
}  # fmt: skip
"""The second words of actions, as a person says them."""


def audit_action(action: str) -> str:
    """Return what somebody did, in words.

    >>> audit_action("budget.put"), audit_action("operator.sign_in"), audit_action("usage.new")
    ('set budget', 'signed in', 'usage new')
    """
    what, _, did = action.partition(".")
    said = _DID.get(did, "")
    return said if " " in said else f"{said or what} {what if said else did}".replace("_", " ")


def audit_target(target: str, details: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return to what it was done, by the name that people know it by."""
    kind, scope_id = details.get("scope_kind"), details.get("scope_id") or ""
    if kind is None:
        return names.get(target) or str(details.get("name") or target)
    of = (
        "whole organisation"
        if kind == "organisation"
        else f"{kind} {names.get(scope_id, scope_id)}"
    )
    window = details.get("window")
    return f"{of}, {'in total' if window == 'total' else f'per {window}'}" if window else of


def audit_details(details: Mapping[str, Any], now_ms: int) -> list[tuple[str, str]]:
    """Return an entry's details as names and texts.

    >>> audit_details({"limit_nanousd": 2_000_000_000, "ask_ms": 300_000, "epsilon_nanousd": 0}, 0)
    [('limit', '$2'), ('ask', '5m')]
    >>> audit_details({"limit": 20_000, "unit": "tokens", "created_at_ms": 1}, 0)
    [('limit', '20,000 tokens')]
    """
    return list(_each("", details, now_ms))


def _each(prefix: str, details: Mapping[str, Any], now_ms: int) -> Iterator[tuple[str, str]]:
    unit = details.get("unit")
    for key, value in details.items():
        if value in (None, "", False, [], {}, 0) or key in _SILENT:
            continue
        if (key, value) == ("version", 1):
            continue
        name = prefix if key == "document" else f"{prefix} {_named(key)}".strip()
        if isinstance(value, Mapping):
            yield from _each(name, value, now_ms)
        else:
            yield name, _said(key, value, unit, now_ms)


def _named(key: str) -> str:
    for ending in ("_nanousd", "_at_ms", "_ms", "_per_mtok"):
        key = key.removesuffix(ending)
    return key.replace("_", " ")


def _said(key: str, value: Any, unit: str | None, now_ms: int) -> str:
    if value is True:
        return "yes"
    if isinstance(value, int):
        if key in _IN_UNIT and unit is not None:
            return amount_in(unit, value)
        if key.endswith("_nanousd"):
            return dollars(value)
        if key.endswith("_per_mtok"):
            return f"{dollars(value)} per million tokens"
        if key.endswith("_ms"):
            return f"{dated(value, now_ms)} UTC" if value >= _MOMENT_MIN_MS else (
                written_duration(value)
            )  # fmt: skip
        return f"{value:,}"
    if isinstance(value, list) and key == "thresholds":
        return ", ".join(f"{each:.0%}" for each in value)
    if isinstance(value, list):
        return _short(", ".join(_item(each, now_ms) for each in value))
    return _short(str(value))


def _item(value: Any, now_ms: int) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {text}" for name, text in _each("", value, now_ms))
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
