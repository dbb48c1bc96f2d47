"""An operator's facts: through the API, and to the programs of one organisation alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from guard.gateway.admin import AdminError
from guard.gateway.domain.facts import BYTES_MAX, FACTS_MAX
from tests.gateway.test_control import next_message
from tests.gateway.test_tool_rules import open_channel


def test_a_change_is_listed_audited_and_counted(tenant: Any) -> None:
    admin = tenant.admin
    fact = {"name": "tool:orbit", "source": "its vendor", "date": "2026-11-29"}
    assert admin.change_facts([fact]) == {"added": 1, "changed": 0, "removed": 0, "total": 1}
    entry = admin.audit(limit=1)[0]
    assert (entry["action"], entry["details"]["put"][0]["name"]) == ("facts.change", "tool:orbit")
    assert admin.change_facts([fact])["added"] == 0
    assert admin.audit(limit=1)[0]["seq"] == entry["seq"], "what changes nothing is no entry"
    plain = {"name": "n_best", "format": "chat", "judged": "repeats"}
    admin.change_facts([{**fact, "source": "another"}, plain])
    assert [each["name"] for each in admin.facts()] == ["n_best", "tool:orbit"]
    judged = admin.change_facts([{**plain, "judged": "neutral"}])
    assert judged == {"added": 0, "changed": 1, "removed": 0, "total": 2}
    assert admin.change_facts([plain], "replace")["removed"] == 1
    assert admin.change_facts([plain], "remove") == {
        "added": 0, "changed": 0, "removed": 1, "total": 0,
    }  # fmt: skip
    assert admin.facts() == []


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ({"name": "orbit"}, "'orbit' is none of member:NAME, tool:NAME"),
        ({"name": "tool:"}, "'tool:' is none of"),
        ({"name": "tool:a\x1b[31m"}, "has a control character"),
        ({"name": "x", "format": "telex"}, "'telex' is no format: there are chat, responses"),
        ({"name": "x", "format": "chat", "date": "yesterday"}, "'yesterday' is no date"),
        ({"name": "tool:x", "judged": "opens"}, "neutral everywhere"),
        ({"name": "x", "format": "chat", "judged": "free"}, "judged"),
        ({"name": "x" * 101, "format": "chat"}, "at most 100 characters"),
        ({"name": "x", "format": "chat", "host": "evil.example"}, "host"),
    ],
)
def test_what_cannot_be_a_fact_is_refused_in_a_sentence(
    fact: dict[str, Any], said: str, tenant: Any
) -> None:
    with pytest.raises(AdminError) as refused:
        tenant.admin.change_facts([fact])
    assert refused.value.status == 400
    assert said in str(refused.value)
    assert tenant.admin.facts() == []


def test_an_organisation_has_no_more_facts_than_its_programs_take(tenant: Any) -> None:
    many = [{"name": f"m{n}", "format": "chat"} for n in range(FACTS_MAX)]
    assert tenant.admin.change_facts(many)["total"] == FACTS_MAX
    with pytest.raises(AdminError, match="at most 2000 facts, not 2001"):
        tenant.admin.change_facts([{"name": "tool:x"}])
    wide = [{"name": f"{n:04}" + "\N{OGHAM LETTER BEITH}" * 96, "format": "chat"}
            for n in range(1000)]  # fmt: skip
    with pytest.raises(AdminError, match=f"at most {BYTES_MAX} bytes"):
        tenant.admin.change_facts(wide, "replace")
    assert len(tenant.admin.facts()) == FACTS_MAX


def test_a_fact_is_for_one_organisation(make_tenant: Callable[..., Any]) -> None:
    tenant, other_tenant = make_tenant(), make_tenant()
    with open_channel(tenant, "none&facts=none") as own:
        with open_channel(other_tenant, "none&facts=none") as others:
            tenant.admin.change_facts([{"name": "tool:orbit"}])
            assert "facts" not in next_message(others, "hello")
            other_tenant.admin.kill("w")
            while (message := next_message(others))["type"] != "kill":
                assert "facts" not in message
        while "facts" not in (message := next_message(own)):
            pass
        assert message["facts"]["groups"] == [["trust", "", "neutral", ["tool:orbit"]]]
    assert other_tenant.admin.facts() == []


def test_facts_that_are_known_are_not_sent_again_and_an_old_program_gets_none(tenant: Any) -> None:
    tenant.admin.change_facts([{"name": "tool:orbit"}])
    with open_channel(tenant, "none&facts=none") as channel:
        version = next_message(channel, "hello")["facts"]["version"]
    with open_channel(tenant, f"none&facts={version}") as channel:
        assert "facts" not in next_message(channel, "hello")
        tenant.admin.change_facts([], "replace")
        while "facts" not in (message := next_message(channel)):
            pass
        assert message["facts"] == {}  # version "none", no groups
    tenant.admin.change_facts([{"name": "tool:orbit"}])
    with open_channel(tenant) as channel:
        assert "facts" not in next_message(channel, "hello")
    for known, sent in (("tools=none", False), ("tools=none&facts=none", True)):
        reply = tenant.http.get(f"/api/v1/control?after=0&{known}").json()
        assert any("facts" in message for message in reply["messages"]) is sent
