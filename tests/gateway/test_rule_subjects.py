"""What rules are for: a key by any of its names, and nothing that does not exist unless asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.cli.main import gateway as command

_numbers = itertools.count(1)
CENT = 10**7


@pytest.fixture
def invoke(tenant: Any) -> Callable[..., Result]:
    """Run a command on the tenant; return its result."""
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
           "COLUMNS": "300"}  # fmt: skip

    def run(*words: str, expect: int = 0) -> Result:
        own = ["--organisation", tenant.organisation_id]
        result = CliRunner().invoke(command, [*words, *own], env=env)
        assert result.exit_code == expect, result.output
        return result

    return run


def _own_key(tenant: Any) -> dict[str, Any]:
    return _keys(tenant, "test")[0]


def _keys(tenant: Any, name: str) -> list[dict[str, Any]]:
    listed = tenant.admin.keys()
    return [dict(each) for each in listed if each["name"] == name]


def _wrong(admin: AdminClient, kind: str, scope_id: str) -> str:
    with pytest.raises(AdminError) as refused:
        admin.set_budget(0.1, scope_kind=kind, scope_id=scope_id)
    assert refused.value.status == 409
    return str(refused.value)


@pytest.mark.parametrize("name", ["key_id", "name", "prefix"])
def test_a_budget_for_a_key_holds_whichever_of_its_names_is_given(tenant: Any, name: str) -> None:
    key = _own_key(tenant)
    set_ = tenant.admin.set_budget(0.1, scope_kind="key", scope_id=key[name])
    assert set_["scope_id"] == key["key_id"]
    tenant.send(tenant.llm(CENT))
    assert tenant.refused(402, "GD-B004")["budget"]["limit_nanousd"] == CENT // 10


def test_a_pasted_secret_means_its_key_and_is_stored_nowhere(tenant: Any) -> None:
    set_ = tenant.admin.set_budget(1, scope_kind="key", scope_id=tenant.api_key)
    assert set_["scope_id"] == _own_key(tenant)["key_id"]
    other = "gdk_" + "x" * 43
    assert other not in _wrong(tenant.admin, "key", other)
    with pytest.raises(AdminError):
        tenant.admin.set_budget(1, scope_kind="key", scope_id=other, anyway=True)


def test_several_keys_of_a_name_are_told_apart_by_their_ids(tenant: Any) -> None:
    for _ in range(2):
        tenant.admin.create_key("ci")
    ids = [each["key_id"] for each in _keys(tenant, "ci")]
    said = _wrong(tenant.admin, "key", "ci")
    assert all(each in said for each in ids)
    tenant.admin.set_budget(1, scope_kind="key", scope_id=ids[0])
    # Of keys of one name, one that was revoked is not meant.
    tenant.admin.revoke_key(ids[0])
    assert tenant.admin.set_budget(1, scope_kind="key", scope_id="ci")["scope_id"] == ids[1]


def test_a_key_of_another_organisation_is_none_of_this_one(make_tenant: Any) -> None:
    tenant, other = make_tenant(), make_tenant()
    other.admin.create_key("theirs")
    for name in (_own_key(other)["key_id"], "theirs"):
        assert "there is no key" in _wrong(tenant.admin, "key", name)


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    [
        ("key", "tset", "test"),
        ("tag", "team=serach", "team=search"),
        ("tag", "taem=search", "team=search"),
        ("model", "gpt-4o-mni", "gpt-4o-mini"),
        ("model", "GPT-4o", "gpt-4o"),
        ("model", "our-modle", "our-model"),
        ("model", "priced-modle", "priced-model"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_is_near(
    tenant: Any, kind: str, typed: str, meant: str
) -> None:
    tenant.send(tenant.llm(1, tags={"team": "search"}, data={"model": "our-model"}))
    tenant.admin.set_price("priced-model", input_per_mtok=1, output_per_mtok=1)
    said = _wrong(tenant.admin, kind, typed)
    assert "did you mean" in said
    assert meant in said
    assert tenant.admin.budgets() == []
    tenant.admin.set_budget(1, scope_kind=kind, scope_id=meant)
    assert tenant.admin.unmatched() <= {("price", "priced-model")}
    tenant.admin.set_budget(1, scope_kind=kind, scope_id=typed, anyway=True)
    assert (kind, typed) in tenant.admin.unmatched()
    # A rule that is there can be changed.
    tenant.admin.set_budget(2, scope_kind=kind, scope_id=typed)


@pytest.mark.parametrize(
    ("kind", "scope_id"),
    [("workflow", "nightly"), ("workflow", "n-*"), ("agent", "a"), ("chain", "c"), ("user", "u"),
     ("tag", "team=*"), ("tag", "team=s*"), ("model", "our-*"), ("key", "*"), ("user", "*")],
)  # fmt: skip
def test_what_comes_into_being_later_needs_no_word(tenant: Any, kind: str, scope_id: str) -> None:
    tenant.admin.set_budget(1, scope_kind=kind, scope_id=scope_id)
    assert ((kind, scope_id) in tenant.admin.unmatched()) is (scope_id != "*")


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4o-2024-08-06", "whisper-1", "openai/gpt-4o",
                                   "us.anthropic.claude-3-5-sonnet-20240620-v1:0"])  # fmt: skip
def test_a_published_model_exists(tenant: Any, model: str) -> None:
    tenant.admin.set_budget(1, scope_kind="model", scope_id=model)
    assert tenant.admin.unmatched() == set()


def test_it_matches_from_the_first_call_on(tenant: Any) -> None:
    subjects = {"workflow": "nightly", "agent": "reader", "chain": "c-1", "user": "u-1",
                "tag": "team=new", "model": "tuned"}  # fmt: skip
    for kind, scope_id in subjects.items():
        tenant.admin.set_budget(1, scope_kind=kind, scope_id=scope_id, anyway=True)
    assert tenant.admin.unmatched() == set(subjects.items())
    tenant.send(
        tenant.llm(1, workflow_id="nightly", agent="reader", chain_id="c-1", user="u-1",
                   tags={"team": "new"}, data={"model": "tuned"})
    )  # fmt: skip
    assert tenant.admin.unmatched() == set()


def test_a_key_below_another_may_come_later(tenant: Any) -> None:
    own = _own_key(tenant)["key_id"]
    for scope_id in (f"{own}*", f"{own}.*"):
        tenant.admin.set_budget(1, scope_kind="key", scope_id=scope_id)
    assert tenant.admin.unmatched() == set()
    assert "there is no key" in _wrong(tenant.admin, "key", "test-*")


def test_policies_are_for_keys_by_name_too(tenant: Any) -> None:
    made = tenant.admin.set_policy("p", scope_kind="key", scope_id="test", tools_block=["rm"])
    assert made["scope_id"] == _own_key(tenant)["key_id"]
    tenant.refused(403, "GD-T001", kind="tool", tool_name="rm")
    with pytest.raises(AdminError, match="did you mean test"):
        tenant.admin.set_policy("q", scope_kind="key", scope_id="tets", tools_block=["rm"])
    tenant.admin.set_policy("q", scope_kind="key", scope_id="tets", anyway=True, tools_block=["x"])
    assert tenant.admin.unmatched() == {("key", "tets")}


def test_an_alert_names_a_channel_that_is_there(tenant: Any) -> None:
    tenant.admin.set_channel("ops", "pagerduty", secret="s")
    with pytest.raises(AdminError, match=r"there is no channel osp; did you mean ops\?"):
        tenant.admin.set_alert("kill", on="kill", channels=["osp"])


def test_the_command_line_says_what_matches_nothing(tenant: Any, invoke: Any) -> None:
    words = ("budgets", "set", "--limit", "1", "--scope", "key", "--id")
    refused = invoke(*words, "tets", expect=1).output
    assert "did you mean test?" in refused
    assert "--anyway" in refused
    assert "key tets (matches nothing yet)" in invoke(*words, "tets", "--anyway").output
    assert f"key {_own_key(tenant)['key_id']}\n" in invoke(*words, "test").output
    assert "key tets (matches nothing yet)" in invoke("budgets", "list").output
    invoke("budgets", "raise", "test", "--by", "$1")
    invoke("prices", "set", "o-*", "--input", "1", "--output", "1")
    assert "o-* (matches nothing yet)" in invoke("prices", "list").output
    assert "policy p" in invoke("policies", "set", "p", "--block-tool", "rm").output
    tenant.admin.set_policy("w", scope_kind="workflow", scope_id="later", tools_block=["rm"])
    assert "workflow later (matches nothing yet)" in invoke("policies", "list").output


def test_a_file_sets_a_price_and_what_needs_it_at_once(
    tenant: Any, invoke: Any, tmp_path: Path
) -> None:
    file = tmp_path / "rules.json"
    rates = {"input": 1, "output": 1}
    rules: dict[str, Any] = {
        "prices": [{"model": "own-model", "rates": rates}],
        "budgets": [
            {"scope_kind": "model", "scope_id": "own-model", "limit": 1},
            {"scope_kind": "key", "scope_id": "test", "limit": 1},
            {"scope_kind": "workflow", "scope_id": "later", "limit": 1},
        ],
        "policies": [{"name": "p", "scope_kind": "key", "scope_id": "test", "document": {}}],
    }
    file.write_text(json.dumps(rules))
    for again in ("5 changed", "0 changed"):
        said = invoke("apply", str(file)).output
        assert again in said
        assert "budget workflow later total (matches nothing yet)" in said
        assert "model own-model total\n" in said
    rules["budgets"].append({"scope_kind": "tag", "scope_id": "team=x", "limit": 1})
    rules["budgets"].append({"scope_kind": "workflow", "scope_id": "last", "limit": 1})
    file.write_text(json.dumps(rules))
    assert "there is no tag team=x" in invoke("apply", str(file), "--dry-run", expect=1).output
    assert "there is no tag team=x" in invoke("apply", str(file), expect=1).output
    assert len(tenant.admin.budgets()) == 3
    assert "team=x total (matches nothing yet)" in invoke("apply", str(file), "--anyway").output
    rules["budgets"][-2] |= {"scope_id": "team=y", "anyway": True}
    file.write_text(json.dumps(rules))
    assert "team=y total (matches nothing yet)" in invoke("apply", str(file)).output
