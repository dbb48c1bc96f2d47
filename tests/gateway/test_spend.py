"""`GET /api/v1/spend`, on each engine."""

from __future__ import annotations

from typing import Any

from guard.core.wire import SPEND_PATH

CENT = 10_000_000


def test_spend_of_a_workflow_a_run_and_its_budgets(tenant: Any) -> None:
    tenant.admin.set_budget(10, scope_kind="workflow", scope_id="w*", window="day")
    tenant.admin.set_budget(4, scope_kind="user", scope_id="*")
    tenant.send(
        tenant.llm(CENT, workflow_id="w", run_id="r1", user="u"),
        tenant.llm(2 * CENT, workflow_id="w", run_id="r2"),
        tenant.llm(5 * CENT, workflow_id="other", run_id="r3", user="u"),
    )
    tenant.allowed(workflow_id="w", run_id="r2")
    asked = {"workflow": "w", "run": "r1", "user": "u"}
    reply = tenant.http.get(SPEND_PATH, params=asked).json()
    found = {name: reply[name] for name in ("workflow_id", "is_known", "spent_nanousd", "run_id",
                                            "run_spent_nanousd")}  # fmt: skip
    assert found == {"workflow_id": "w", "is_known": True, "spent_nanousd": 3 * CENT,
                     "run_id": "r1", "run_spent_nanousd": CENT}  # fmt: skip
    budgets = {each["scope"]: each for each in reply["budgets"]}
    assert budgets.keys() == {"workflow w (day)", "user u (total)"}
    assert budgets["workflow w (day)"]["spent_nanousd"] == 3 * CENT
    assert budgets["workflow w (day)"]["reserved_nanousd"] > 0
    assert budgets["user u (total)"]["remaining_nanousd"] == -2 * CENT
    assert tenant.http.get(SPEND_PATH, params={**asked, "run": "r3"}).status_code == 404
    unknown = tenant.http.get(SPEND_PATH, params={"workflow": "x", "run": "r9"}).json()
    assert (unknown.get("is_known", False), unknown["run_spent_nanousd"]) == (False, 0)
