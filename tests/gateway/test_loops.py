"""Repeats within runs: counted, flagged, paused, refused, on both engines."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from guard.gateway.admin import AdminError
from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres
from tests.support.prometheus import METRICS_KEY, metrics_of
from tests.support.waiting import until

SEARCH = {"tool_name": "search", "workflow_id": "w", "run_id": "r", "digest": "d1"}
PROMPT = {"kind": "llm", "function": "openai", "model": "gpt-4o-2024-08-06", "workflow_id": "w",
          "run_id": "r", "digest": "p1", "max_input_tokens": 9, "max_output_tokens": 9}  # fmt: skip


def limited(tenant: Tenant, on_repeat: str = "refuse", **caps: Any) -> None:
    """Have at most two calls of ``search`` and two requests for ``gpt-4o`` be the same."""
    cap = {"times": 2, "tools": ["search"], "models": ["gpt-4o"], "on_repeat": on_repeat, **caps}
    tenant.admin.set_policy("loops", repeat_caps=[cap])


def span(digest: str = "d1", run_id: str = "r", **fields: Any) -> dict[str, Any]:
    """Make the event of a call that was made."""
    event = Tenant.llm(**fields)
    data = {"name": "f", "tool_name": "search", "digest": digest}
    return {**event, "type": "span", "data": data, "run_id": run_id, "workflow_id": "w"}


# -- rules -----------------------------------------------------------------------------------------


def test_a_repeat_is_refused_and_says_what_was_counted(tenant: Tenant) -> None:
    limited(tenant)
    for _ in range(2):
        tenant.allowed(**SEARCH)
    problem = tenant.refused(403, "GD-T001", **SEARCH)
    assert problem["reason"] == "search was called 2 times with the same arguments in this run"
    assert problem["action"] == "repeat"
    assert problem["details"] == {"policy": "loops", "policy_version": 1, "count": 2, "limit": 2}
    for others in ({"digest": "d2"}, {"run_id": "r2"}, {"digest": None},
                   {"run_id": None}):  # fmt: skip
        tenant.allowed(**{**SEARCH, **others})


def test_a_prompt_is_counted_by_any_name_of_its_model(tenant: Tenant) -> None:
    limited(tenant)
    for _ in range(2):
        tenant.allowed(**PROMPT)
    reason = tenant.refused(403, "GD-X001", **PROMPT)["reason"]
    assert reason == "gpt-4o-2024-08-06 was asked 2 times with the same prompt in this run"
    tenant.allowed(**{**PROMPT, "model": "gpt-4o-mini"})
    tenant.allowed(**{**PROMPT, "digest": "p2"})
    tenant.allowed(**PROMPT, grows=True)  # more for one that is under way


def test_a_rule_is_exact_under_fan_out(tenant: Tenant) -> None:
    limited(tenant, times=7)
    with ThreadPoolExecutor(16) as pool:
        codes = [each.status_code for each in pool.map(lambda _: tenant.gate(**SEARCH), range(40))]
    assert sorted(codes) == [200] * 7 + [403] * 33


def test_the_same_question_again_counts_once(tenant: Tenant) -> None:
    limited(tenant, times=1)
    once = {"headers": {"Idempotency-Key": "k1"}, **SEARCH, "call_id": "c1"}
    assert tenant.gate(**once).status_code == tenant.gate(**once).status_code == 200
    tenant.refused(403, "GD-T001", **SEARCH)


def test_what_is_refused_otherwise_does_not_count(tenant: Tenant) -> None:
    limited(tenant, times=1)
    tenant.admin.set_budget(limit_calls=0)
    tenant.refused(402, "GD-B004", **SEARCH)
    tenant.admin.set_budget(limit_calls=9)
    tenant.allowed(**SEARCH)
    tenant.refused(403, "GD-T001", **SEARCH)


def test_a_paused_run_is_resumed_and_counts_anew(tenant: Tenant) -> None:
    limited(tenant, "pause")
    for target in ({"run_id": "r"}, {"workflow_id": "w"}):
        for _ in range(2):
            tenant.allowed(**SEARCH)
        problem = tenant.refused(403, "GD-W003", **SEARCH)
        assert problem["reason"] == "search was called 2 times with the same arguments in this run"
        tenant.refused(403, "GD-W003", **{**SEARCH, "digest": "d2"})
        tenant.allowed(**{**SEARCH, "run_id": "another"})
        tenant.admin.request("POST", "/control", {"action": "resume", **target})
        tenant.admin.request("POST", "/control", {"action": "resume", "run_id": "another"})
    tenant.allowed(**SEARCH)
    audit = [entry for entry in tenant.admin.audit() if entry["action"] == "workflow.pause"]
    assert {(entry["actor"], entry["target"]) for entry in audit} == {("policy loops", "r")}


def test_a_key_for_another_workflow_pauses_and_flags_no_run(tenant: Tenant) -> None:
    limited(tenant, "pause")
    tenant.allowed(**SEARCH)
    key = tenant.admin.create_key("other", workflow_id="mine")
    headers = {"X-API-Key": key}
    foreign = {**SEARCH, "workflow_id": "mine", "digest": "theirs", "headers": headers}
    codes = [tenant.gate(**foreign).status_code for _ in range(3)]
    assert codes == [200, 200, 403]
    assert tenant.gate(**foreign).json()["error_code"] == "GD-T001", "it is refused, not paused"
    tenant.allowed(**SEARCH)
    assert flags(tenant) == []


def test_a_named_call_is_only_counted(tenant: Tenant) -> None:
    """A model has named the tool: a person was asked, and its money set aside, then."""
    limited(tenant)
    tenant.admin.set_policy("people", approval_tools=["search"])
    tenant.admin.set_budget(limit_calls=0)
    for _ in range(2):
        assert "reservation_id" not in tenant.allowed(**SEARCH, named=True)
    tenant.refused(403, "GD-T001", **SEARCH, named=True)
    tenant.admin.delete_policy("loops")
    assert tenant.gate(**SEARCH, named=True).json()["decision"] == "pending", "no rule counts it"


def test_policies_apply_to_their_scope(tenant: Tenant) -> None:
    cap = {"times": 1, "tools": ["search"]}
    tenant.admin.set_policy("p", scope_kind="agent", scope_id="a*", repeat_caps=[cap])
    for _ in range(3):
        tenant.allowed(**SEARCH, agent="b")
    tenant.allowed(**SEARCH, agent="a1")
    tenant.refused(403, "GD-T001", **SEARCH, agent="a1")


def test_a_rule_names_tools_or_models(tenant: Tenant) -> None:
    with pytest.raises(AdminError, match="names tools or models"):
        tenant.admin.set_policy("p", repeat_caps=[{"times": 1}])


# -- notices ---------------------------------------------------------------------------------------


def test_reported_calls_flag_a_run_and_stop_nothing(tenant: Tenant) -> None:
    limited(tenant, "notice")
    before = metric(tenant, "tool")
    first = span()
    for event in (first, span(), first):  # a duplicate is no other call
        tenant.send(event)
    assert flags(tenant) == []
    tenant.send(span("d2"), span(run_id="r2"), span())
    assert flags(tenant) == [("tool", "search", 3, "notice")]
    tenant.send(span())
    assert metric(tenant, "tool") == before + 1
    tenant.allowed(**SEARCH)


def test_reported_prompts_flag_a_run(tenant: Tenant) -> None:
    limited(tenant, "notice")
    for _ in range(3):
        tenant.send(tenant.llm(7, data={"digest": "p"}, run_id="r", workflow_id="w"))
    assert flags(tenant) == [("model", "gpt-4o", 3, "notice")]


def test_without_a_rule_nothing_is_counted(tenant: Tenant) -> None:
    for _ in range(3):
        tenant.send(span())
        tenant.allowed(**SEARCH)
    limited(tenant, "notice", times=1)
    tenant.send(span())
    assert flags(tenant) == []


def flags(tenant: Tenant, run_id: str = "r") -> list[tuple[str, str, int, str]]:
    """Return what the run's page shows."""
    server, loop = tenant.gateway._server, tenant.gateway._loop
    assert server is not None
    assert loop is not None
    asked = server.app.storage.loops(tenant.organisation_id, "w", run_id)
    found = asyncio.run_coroutine_threadsafe(asked, loop).result(60)
    return [(each.kind, each.subject, each.times, each.action) for each in found]


def metric(tenant: Tenant, kind: str) -> float:
    """Return how many runs were flagged."""
    text = metrics_of(tenant.gateway.base_url)
    name = f'guard_gateway_loops_total{{kind="{kind}"}} '
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


# -- a model ---------------------------------------------------------------------------------------


class Loops(RuleBasedStateMachine):
    """Any sequence of calls, reports and resumes, against counters in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.running = run_gateway(
            Path(self.folder.name) / "gateway.sqlite3", metrics_key=METRICS_KEY
        )
        self.tenant = new_tenant(self.running.__enter__())
        caps = [
            {"times": 2, "tools": ["refused"], "on_repeat": "refuse"},
            {"times": 3, "tools": ["paused"], "on_repeat": "pause"},
            {"times": 2, "tools": ["noticed"], "on_repeat": "notice"},
        ]
        self.tenant.admin.set_policy("p", repeat_caps=caps)
        self.allowed: Counter[tuple[str, str, str]] = Counter()
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.paused: set[str] = set()
        self.flagged: set[tuple[str, str, str]] = set()
        # What was counted before its run was resumed; its flag goes with the next count.
        self.stale: set[tuple[str, str, str]] = set()

    def teardown(self) -> None:
        self.tenant.http.close()
        self.tenant.admin.close()
        self.running.__exit__(None, None, None)
        self.folder.cleanup()

    @rule(run=st.sampled_from("ab"), tool=st.sampled_from(["refused", "paused", "noticed"]),
          digest=st.sampled_from("xy"))  # fmt: skip
    def call(self, run: str, tool: str, digest: str) -> None:
        place = run, tool, digest
        status = self.tenant.gate(
            workflow_id="w", run_id=run, tool_name=tool, digest=tool + digest
        ).status_code
        limit = {"refused": 2, "paused": 3, "noticed": 10**9}[tool]
        if run in self.paused or self.allowed[place] >= limit:
            assert status == 403
            if run not in self.paused:
                self.flagged.add(place)
                if tool == "paused":
                    self.paused.add(run)
        else:
            assert status == 200
            self.allowed[place] += 1
            self._noticed(place)

    @rule(run=st.sampled_from("ab"), tool=st.sampled_from(["paused", "noticed"]),
          digest=st.sampled_from("xy"))  # fmt: skip
    def report(self, run: str, tool: str, digest: str) -> None:
        place = run, tool, digest
        event = span(tool + digest, run)
        event["data"]["tool_name"] = tool
        assert self.tenant.send(event).status_code == 202
        self.seen[place] += 1
        self._noticed(place)

    def _noticed(self, place: tuple[str, str, str]) -> None:
        if place in self.stale:
            self.stale.discard(place)
            self.flagged.discard(place)
        if place[1] == "noticed" and max(self.allowed[place], self.seen[place]) > 2:
            self.flagged.add(place)

    @rule(run=st.sampled_from("ab"))
    def resume(self, run: str) -> None:
        self.tenant.admin.request("POST", "/control", {"action": "resume", "run_id": run})
        self.paused.discard(run)
        self.stale |= {place for place in {*self.allowed, *self.seen} if place[0] == run}
        for counter in (self.allowed, self.seen):
            for place in [place for place in counter if place[0] == run]:
                del counter[place]

    @invariant()
    def what_was_exceeded_is_flagged_and_nothing_else(self) -> None:
        for run in "ab":
            found = Counter(subject for _, subject, _, _ in flags(self.tenant, run))
            assert found == Counter(tool for where, tool, _ in self.flagged if where == run)


def test_any_sequence_of_calls_counts_like_a_dict() -> None:
    Loops.TestCase.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)
    case = Loops.TestCase()
    case.runTest()


# -- replicas --------------------------------------------------------------------------------------


def test_replicas_count_together_and_a_resume_is_for_all(tmp_path: Path) -> None:
    database = postgres.url_of(tmp_path)
    with run_gateway(database) as one, run_gateway(database) as other:
        first = new_tenant(one)
        second = Tenant(
            other, first.organisation_id, first.admin, first.api_key,
            httpx.Client(base_url=other.base_url, headers=first.http.headers, trust_env=False),
        )  # fmt: skip
        limited(first, "pause", times=7)
        both = (first, second)
        # The other one learns of the policy by a notice.
        probe = {**SEARCH, "run_id": "probe"}
        until(lambda: second.gate(**probe).status_code == 403)

        def calls() -> list[int]:
            with ThreadPoolExecutor(8) as pool:
                asked = pool.map(lambda number: both[number % 2].gate(**SEARCH), range(30))
                return sorted(each.status_code for each in asked)

        assert calls() == [200] * 7 + [403] * 23
        first.admin.request("POST", "/control", {"action": "resume", "run_id": "r"})
        assert calls() == [200] * 7 + [403] * 23
        for tenant in both:
            tenant.http.close()
        first.admin.close()
