"""Pages say that something is absent only after it was counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from guard.gateway import dashboard
from guard.gateway.cli.main import gateway as command
from guard.gateway.dashboard import budgets_and_policies

TEMPLATES: Final = Path(dashboard.__file__).parent / "templates"
YET: Final = re.compile(r"\b((?:No|Nothing|None)\b[^.:<>{}]*\byet)\b")
"""A sentence that tells a person to begin: it is wrong beside what somebody has made."""

MADE: Final = {
    "No budget yet", "No policy yet", "No channel yet", "No rule yet", "No events yet",
    "No repeats were counted yet", "No key is yours yet",
    "No key and no group yet",
}  # fmt: skip
"""The sentences whose absence is counted below, or that the page's own count decides."""

PAGES: Final = (
    "/", "/budgets", "/policies", "/alerts", "/events", "/users", "/latency", "/spend",
    "/workflow?id=w", "/workflow?id=w&tab=spans", "/model?id=gpt-4o", "/agent?id=a",
    "/tag?name=t&id=1", "/teams",
)  # fmt: skip


def sentences(text: str) -> set[str]:
    return set(YET.findall(text))


def test_each_sentence_of_the_templates_is_known_here() -> None:
    found = set[str]().union(*(sentences(each.read_text()) for each in TEMPLATES.iterdir()))
    assert found == MADE, "say what was counted, or add it here and what makes it false below"


def _fill(tenant: Any) -> None:
    for number in range(8):
        tenant.admin.set_budget(
            limit_nanousd=10**9, scope_kind="workflow", scope_id=f"w{number}", anyway=True
        )
    tenant.admin.set_policy("p", tools_block=["delete_*"])


@pytest.mark.generator("pages that say what is absent")
def test_nothing_is_called_absent_beside_eight_budgets(
    visitor: Any, tenant: Any, count_cases: Callable[[int], None]
) -> None:
    assert sentences(visitor.get("/").text) == {"No budget yet"}
    assert sentences(visitor.get("/policies").text) == {"No policy yet"}
    _fill(tenant)
    wrong = {}
    for page in PAGES:
        path, _, query = page.partition("?")
        said = sentences(visitor.get(path, **dict(re.findall(r"(\w+)=([^&]+)", query))).text)
        if said & {"No budget yet", "No policy yet", "No key and no group yet"}:
            wrong[page] = said
    assert not wrong
    assert "8 budgets are set" in visitor.get("/").text
    count_cases(len(PAGES))


LISTS: Final = (
    "workflows", "budgets list", "policies list", "usage --by workflow", "usage --by day",
    "alerts list", "alerts channels list", "alerts deliveries", "approvals list --all",
    "prices list", "audit list", "budgets raises",
)  # fmt: skip
"""Commands that list what an organisation has; a new one has none of it, but an entry of audit."""

AMONG: Final = {
    "workflows --after zzz": "none after zzz on",
    "usage --by workflow --since 2099-01-01": "none since 2099-01-01 00:00:00Z on",
    "approvals list": "none is pending (--all: answered ones too) on",
    "audit list --after 999999": "none after 999999 on",
}
"""Commands that leave out some, or all, and what they say then."""


@pytest.mark.generator("lists and reports that say what is absent")
def test_a_command_calls_nothing_absent_that_it_left_out(
    tenant: Any, count_cases: Callable[[int], None]
) -> None:
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key}

    def said(line: str) -> str:
        words = [*line.split(), "--organisation", tenant.organisation_id]
        result = CliRunner().invoke(command, words, env=env)
        assert result.exit_code == 0, (line, result.output)
        return result.output

    for line in LISTS:
        assert said(line).startswith("none on http://") is (line != "audit list"), line
    _fill(tenant)
    _use(tenant)
    for line in LISTS:
        assert "none" not in said(line).partition("\n")[0], line
    for line, sentence in AMONG.items():
        assert said(line).startswith(sentence), line
    count_cases(2 * len(LISTS) + len(AMONG))


def _use(tenant: Any) -> None:
    """Leave some of all that commands list."""
    admin = tenant.admin
    admin.request("PUT", "/policies/people", {"document": {"approval_tools": ["pay"]}})
    asked = tenant.gate("w0", tool_name="pay", call_id="asked").json()
    admin.request("POST", f"/approvals/{asked['approval_id']}", {"approved": False})
    tenant.send("w0", {"type": "llm", "data": {"model": "m", "cost_nanousd": 5}})
    admin.set_price("m", input_per_mtok=1, output_per_mtok=1)
    admin.set_channel("ops", "pagerduty", secret="key")
    admin.set_alert("kills", "kill")
    admin.test_channel("ops")
    budget = next(iter(admin.budgets()))
    admin.raise_budget(budget["budget_id"], 1)


def test_balances_that_are_not_shown_are_not_called_absent(
    visitor: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for window in ("day", "week"):
        tenant.admin.set_budget(limit_nanousd=10**9, scope_kind="organisation", window=window)
    assert visitor.get("/budgets").text.count("No call was counted in this window.") == 2
    monkeypatch.setattr(budgets_and_policies, "BALANCES_MAX", 0)
    text = visitor.get("/budgets").text
    assert "not among the 0 fullest" in text
    assert "No call was counted" not in text
