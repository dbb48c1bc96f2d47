"""Forms refuse rules for what does not exist, and pages say what matches nothing yet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import Tenant, Visitor

BUDGET = {"scope_kind": "key", "window": "day", "limit": "2", "thresholds": "80", "do": "save"}
POLICY = {"scope_kind": "key", "name": "p", "is_new": "1", "tools_block": "rm", "enabled": "1",
          "do": "save"}  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), [("/budgets", BUDGET), ("/policies", POLICY)])
def test_a_form_takes_a_keys_name_and_refuses_a_wrong_one(
    tenant: Tenant, visitor: Visitor, path: str, fields: dict[str, Any]
) -> None:
    wrong = visitor.post(path, **fields, scope_id="tets")
    assert wrong.status_code == 409
    assert "did you mean test?" in wrong.text
    assert 'value="tets"' in wrong.text  # what was typed stays
    assert 'name="anyway"' in wrong.text
    assert visitor.post(path, **fields, scope_id="test").status_code == 303
    rules = tenant.admin.budgets() if path == "/budgets" else tenant.admin.policies()
    listed = tenant.admin.keys()
    ids = [each["key_id"] for each in listed if each["name"] == "test"]
    assert [each["scope_id"] for each in rules] == ids
    assert "matches nothing yet" not in visitor.get(path).text
    later = {**fields, "scope_id": "tets", "anyway": "1"}
    assert visitor.post(path, **later).status_code == 303
    assert visitor.get(path).text.count("matches nothing yet") == 1


def test_a_price_for_a_model_that_was_never_called(tenant: Tenant, visitor: Visitor) -> None:
    tenant.admin.set_price("o-*", input_per_mtok=1, output_per_mtok=1)
    assert "matches nothing yet" in visitor.get("/settings/prices").text
    tenant.send("w", {"type": "llm", "data": {"model": "o-1", "cost_nanousd": 1}})
    assert "matches nothing yet" not in visitor.get("/settings/prices").text
