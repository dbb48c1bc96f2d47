"""Budgets, prices, settings, details of calls, refusals, audit and the kill of everything."""

from __future__ import annotations

import html
import re
from typing import Final

from tests.dashboard.conftest import Tenant

HOSTILE: Final = '"><img src=x onerror=window.pwned=1><script>window.pwned=1</script>'


def fill(tenant: Tenant) -> None:
    """Something of everything that these pages show."""
    admin = tenant.admin
    admin.set_budget(200, scope_kind="workflow", scope_id="nightly", on_exhausted="ask")
    admin.set_budget(1000, window="day")
    admin.set_budget(limit_tokens=2000, scope_kind="workflow", scope_id="nightly", window="week")
    admin.set_budget(limit_calls=3, counts=["search"], window="hour")
    tenant.spend("nightly", 25 * 10**8)
    for call in ("one", "two"):
        assert tenant.gate("nightly", wait_ms=60_000, call_id=f"asks-{call}").json()["asks"]
    admin.set_policy("careful", tools_block=["shell_*"])
    for number in range(3):
        tenant.gate("auditor", tool_name="shell_exec", call_id=f"shell-{number}", agent="worker")
    for number in range(4):
        tenant.gate("auditor", tool_name="search", call_id=f"search-{number}")
    tokens = {"input_tokens": 1200, "output_tokens": 300, "cache_read_tokens": 800,
              "cache_write_tokens": 100, "reasoning_tokens": 50, "audio_tokens": 7,
              "latency_ms": 1530}  # fmt: skip
    tenant.send(
        "auditor",
        {"type": "llm", "data": {"model": "gpt-4o", "provider": "openai", **tokens},
         "span_id": "b" * 16, "parent_span_id": "a" * 16, "trace_id": "c" * 32, "run_id": "run-1",
         "agent": "worker", "user": "ada", "tags": {"team": "search"}},
        {"type": "llm", "data": {"model": HOSTILE, **tokens}, "agent": HOSTILE, "user": HOSTILE,
         "run_id": "run-1"},
        {"type": "span", "data": {"name": HOSTILE, "outcome": "refused", "error_code": "GD-T001"},
         "call_id": "shell-0", "span_id": "a" * 16, "run_id": "run-1"},
    )  # fmt: skip
    admin.set_price("our-model-*", input_per_mtok=5 * 10**8, output_per_mtok=15 * 10**8)
    admin.request("POST", "/apply", {"prices": [
        {"model": HOSTILE, "rates": {"input_per_mtok": 10**9, "output_per_mtok": 10**9}},
    ]})  # fmt: skip


def newest(tenant: Tenant, kind: str) -> int:
    """Return the number of the newest event of a type."""
    found = [each for each in tenant.admin.request("GET", "/events") if each["type"] == kind]
    return int(found[-1]["event_seq"])


def refusal_path(visitor_text: str) -> str:
    found = re.search(r'href="(/events/refusal\?[^"]+)"', visitor_text)
    assert found is not None
    return html.unescape(found[1])


def paths(tenant: Tenant) -> dict[str, str]:
    """Return the pages by a name."""
    events = tenant.admin.request("GET", "/events")
    llm = [each["event_seq"] for each in events if each["type"] == "llm"]
    return {
        "overview": "/", "budgets": "/budgets", "audit": "/audit", "prices": "/settings/prices",
        "prices-found": "/settings/prices?q=sonnet-4", "gateway": "/settings/gateway",
        "settings": "/settings", "events": "/events", "refused": "/events?show=refused",
        "event": f"/events/event?id={llm[1]}", "hostile": f"/events/event?id={llm[2]}",
        "span": f"/events/event?id={newest(tenant, 'span')}",
        "kill": "/control?action=kill&workflow=*", "workflow": "/workflow?id=nightly",
        "alerts": "/alerts",
    }  # fmt: skip
