"""Facts that an operator sets while a program runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError
from guard.runtime.runtime import GuardRuntime
from tests.guard.asking.test_unknown_members import LIMIT, chat
from tests.guard.conftest import Tenant
from tests.support.waiting import until

ORBIT: Final = {"tools": [{"type": "orbit"}]}
_names = itertools.count(1)


@pytest.fixture
def limited(tenant: Tenant) -> str:
    workflow = f"facts-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=LIMIT)
    return workflow


def passes(workflow: str, **members: Any) -> bool:
    bodies: list[dict[str, Any]] = []
    try:
        with guard.context.workflow(workflow):
            chat(bodies, **members)
    except GuardBudgetError:
        assert not bodies
        return False
    return True


@pytest.mark.parametrize("mode", ["auto", "http"])
def test_a_fact_reaches_a_running_program_and_is_taken_back(
    mode: str, limited: str, tenant: Tenant, start: Callable[..., GuardRuntime]
) -> None:
    runtime = start(wait_for_room_ms=0, transport_mode=mode)
    assert not passes(limited, **ORBIT)
    tenant.admin.change_facts([{"name": "tool:orbit", "date": "2026-11-29"}])
    until(lambda: runtime.facts is not None)
    assert runtime.facts is not None
    assert runtime.facts.date == "2026-11-29"
    assert passes(limited, **ORBIT)
    assert ("trusted:tool:orbit", 1) in runtime.instrumentation.unseen._all()
    tenant.admin.change_facts([], "replace")
    until(lambda: runtime.facts is None)
    assert not passes(limited, **ORBIT)


def test_a_program_that_starts_has_the_facts_before_its_first_request(
    limited: str, tenant: Tenant, start: Callable[..., GuardRuntime]
) -> None:
    tenant.admin.change_facts([{"name": "orbit", "format": "chat", "at": "tools",
                                "judged": "client"}])  # fmt: skip
    start(wait_for_room_ms=0)
    assert passes(limited, **ORBIT)
    tenant.admin.change_facts([], "replace")
