"""The page of an organisation's settings."""

from __future__ import annotations

import re
from typing import Any

from guard.gateway.domain.setting_table import SETTINGS


def _fields(text: str) -> dict[str, str]:
    """Return what the form would send unchanged."""
    found = dict(re.findall(r'name="(was_\w+)" value="([^"]*)"', text))
    for name, each in SETTINGS.items():
        value = found[f"was_{name}"]
        if each.kind != "flag":
            found[name] = value
        elif value == "true":
            found[name] = "1"
    return found


def test_settings_are_shown_and_changed(visitor: Any, tenant: Any) -> None:
    page = visitor.get("/settings").text
    for each in SETTINGS.values():
        assert f'name="{each.name}"' in page
    fields = _fields(page)
    tenant.admin.change_settings(chain_over_permille=77)  # meanwhile, by another operator
    reply = visitor.post("/settings", **{**fields, "strict": "1", "chain_ttl_ms": "1m"})
    assert reply.status_code in (200, 303)
    found = tenant.admin.settings()
    assert (found["strict"], found["chain_ttl_ms"], found["chain_over_permille"]) == (
        True, 60_000, 77,
    )  # fmt: skip
    assert 'name="strict" value="1" checked' in visitor.get("/settings").text

    refused = visitor.post("/settings", **{**fields, "chain_ttl_ms": "soon"})
    assert refused.status_code == 400
    assert "chain_ttl: &#39;soon&#39; is no length of time" in refused.text
    assert tenant.admin.settings() == found
