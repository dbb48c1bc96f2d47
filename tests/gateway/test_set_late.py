"""A budget that is set after something was used shows at once what counts under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SCOPES = {
    "organisation": "", "workflow": "w", "agent": "a", "chain": "c", "user": "u",
    "tag": "project=p", "model": "gpt-4o",
}  # fmt: skip
WINDOWS = ("hour", "day", "week", "month", "total", "5h")
UNITS = ("usd", "tokens", "calls")
CALL = {"workflow_id": "w", "agent": "a", "chain_id": "c", "user": "u",
        "tags": {"project": "p"}, "model": "gpt-4o"}  # fmt: skip


def _shown(tenant: Any) -> dict[str, tuple[int, int]]:
    return {
        each["budget_id"]: (each["committed"], each["remaining"]) for each in tenant.admin.ledger()
    }


@pytest.mark.generator("budgets that are set late")
def test_what_was_used_before_is_shown_before_the_next_call(
    tenant: Any, count_cases: Callable[[int], None]
) -> None:
    tenant.send(tenant.llm(45_852_500, **CALL, data={"input_tokens": 30, "output_tokens": 12}))
    key_id = tenant.admin.keys()[0]["key_id"]
    made = {}
    for scope, scope_id in {**SCOPES, "key": key_id}.items():
        for window in WINDOWS:
            for unit in UNITS:
                limit = {"usd": "limit_nanousd"}.get(unit, f"limit_{unit}")
                budget = tenant.admin.set_budget(
                    scope_kind=scope, scope_id=scope_id, window=window, anyway=True,
                    **{limit: 10**12},
                )  # fmt: skip
                made[budget["budget_id"]] = (scope, window, unit)
    before = _shown(tenant)
    tenant.send(tenant.llm(0, **CALL, data={"input_tokens": 0, "output_tokens": 0}))
    after = _shown(tenant)
    wrong = [
        (made[each], before.get(each), now)
        for each, now in after.items()
        if made[each][2] != "calls" and before.get(each, (0, 10**12)) != now
    ]
    assert not wrong
    counts = {each for each in made.values() if each[1] != "5h" and each[2] != "calls"}
    assert {made[each] for each in before} == counts
    count_cases(len(made))
