"""Lists that may be long say when they may have left something out, and how to see the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
import pytest

from guard.gateway.cli.main import gateway as command
from tests.gateway.conftest import Tenant
from tests.gateway.test_refused_raises import run
from tests.gateway.test_uncertain import lost
from tests.gateway.test_waiting_line import WORST, ask, end


def lists(of: click.Command = command, path: str = "") -> Iterator[str]:
    """Find each command that takes a limit of rows."""
    if isinstance(of, click.Group):
        for name, each in of.commands.items():
            yield from lists(each, f"{path} {name}".strip())
    elif any(each.name == "limit" for each in of.params):
        yield path


# -- two rows of each ------------------------------------------------------------------------------


def two_workflows(tenant: Tenant) -> None:
    tenant.send(tenant.llm(1, workflow_id="a"), tenant.llm(1, workflow_id="b c"))


def two_keys(tenant: Tenant) -> None:
    tenant.admin.create_key("first")
    tenant.admin.create_key("second")


def two_approvals(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["pay"])
    for call_id in "ab":
        tenant.gate(call_id=call_id, tool_name="pay", workflow_id="w")


def two_that_wait(tenant: Tenant) -> str:
    budget = tenant.admin.set_budget(limit_nanousd=WORST, on_exhausted="ask")
    end(tenant, ask(tenant, "first"), cost=WORST)
    for call_id in "ab":
        assert ask(tenant, call_id)["decision"] == "waiting"
    return str(budget["budget_id"])


def two_raises(tenant: Tenant) -> None:
    budget_id = two_that_wait(tenant)
    for _ in range(2):
        tenant.admin.raise_budget(budget_id, WORST)


def two_in_doubt(tenant: Tenant) -> None:
    tenant.send(lost(tenant, 1), lost(tenant, 2))


def two_messages(tenant: Tenant) -> None:
    tenant.admin.set_channel("ops", "slack", secret="https://hooks.invalid/services")
    for _ in range(2):
        tenant.admin.test_channel("ops")
    tenant.admin.delete_channel("ops")


ROWS: Final[dict[str, Callable[[Tenant], Any]]] = {
    "workflows": two_workflows,
    "usage": two_workflows,
    "audit list": two_keys,
    "approvals list": two_approvals,
    "budgets waiting": two_that_wait,
    "budgets raises": two_raises,
    "alerts deliveries": two_messages,
    "doubt list": two_in_doubt,
}


def test_each_list_is_here() -> None:
    assert sorted(lists()) == sorted(ROWS)


@pytest.mark.parametrize("path", ROWS)
@pytest.mark.usefixtures("lasting_places")
def test_a_list_that_is_cut_says_so(tenant: Tenant, path: str) -> None:
    ROWS[path](tenant)
    for how in ([], ["--json"]):
        cut = run(tenant, *path.split(), "--limit", "1", *how)
        assert "these are 1, the limit; there may be more: --limit (at most 1000)" in cut.stderr
        whole = run(tenant, *path.split(), "--limit", "1000", *how)
        assert whole.stderr == ""
        if how:
            assert len(json.loads(cut.stdout)) == 1 < len(json.loads(whole.stdout))


def test_the_next_page_is_named_as_a_shell_takes_it(tenant: Tenant) -> None:
    two_workflows(tenant)
    assert run(tenant, "workflows", "--limit", "2").stderr.endswith("or --after 'b c'\n")


def test_the_audit_log_shows_what_was_done_last(tenant: Tenant) -> None:
    """During an incident, that is what is asked for."""
    for number in range(5):
        tenant.admin.create_key(f"number-{number}")
    every = tenant.admin.audit(after=0)
    newest = json.loads(run(tenant, "audit", "list", "--limit", "2", "--json").stdout)
    assert newest == every[-2:], "the newest at the bottom"
    # From the first one on, page by page, with what the hints name.
    seen: list[dict[str, Any]] = []
    page = run(tenant, "audit", "list", "--limit", "2", "--json")
    while page.stderr:
        after = page.stderr.split()[-1]
        page = run(tenant, "audit", "list", "--limit", "2", "--json", "--after", after)
        seen += json.loads(page.stdout)
    assert seen == every
