"""The key of a session: the keys of its runs belong to it, so that its limits hold for all."""

from __future__ import annotations

import time
from typing import Any, Final

from guard.gateway.admin import AdminClient

NAME_LENGTH_MAX: Final = 100
"""Most characters of a session's name."""

_KEPT_MS: Final = 30 * 86_400_000
"""How long a session is kept after its last run has begun."""

_PREFIX: Final = "session "


def key_of_session(admin: AdminClient, name: str) -> str:
    """Return the id of a session's key, which lasts for 30 days from now; made where there is none.

    Args:
        admin: that of the local gateway.
        name: that of the session.

    Raises:
        AdminError: the gateway refuses.
    """
    now_ms = round(time.time() * 1000)
    found = _living(admin, name, now_ms)
    if found is None:
        made = admin.create_key_full(_PREFIX + name, expires_at_ms=now_ms + _KEPT_MS)
        # Two runs that begin the session at once both take the key that was made first.
        found = _living(admin, name, now_ms) or str(made["key"]["key_id"])
        if found != made["key"]["key_id"]:
            admin.revoke_key(made["key"]["key_id"])
    else:
        admin.change_key(found, expires_at_ms=now_ms + _KEPT_MS)
    return found


def _living(admin: AdminClient, name: str, now_ms: int) -> str | None:
    """Return the id of a session's oldest key that has not ended; remove those that have."""
    mine: list[str] = []
    ended: set[str] = set()
    for key in admin.keys():  # noqa: SIM118  # a request
        if not str(key["name"]).startswith(_PREFIX) or key["revoked_at_ms"] is not None:
            continue
        if _has_ended(key, now_ms):
            ended.add(key["key_id"])
        elif key["name"] == _PREFIX + name:
            mine.append(key["key_id"])
    if ended:
        for budget in admin.budgets():
            if budget["scope_kind"] == "key" and budget["scope_id"] in ended:
                admin.delete_budget(budget["budget_id"])
        for key_id in ended:
            admin.revoke_key(key_id)
    return min(mine, default=None)


def _has_ended(key: dict[str, Any], now_ms: int) -> bool:
    return key["expires_at_ms"] is not None and key["expires_at_ms"] <= now_ms
