"""Questions to a person that outlive the call: the same call, made again, takes them over."""

from __future__ import annotations

import itertools
import random
from typing import Any

import attrs
import pytest

from guard.gateway.admin import AdminError
from guard.gateway.ledger import approvals
from tests.gateway.conftest import Tenant
from tests.support.waiting import until

RUNS = ("r1", "r2")
STEPS = 60


@pytest.fixture(autouse=True)
def needs_approval(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    # No caller renews its question here; a slow machine is no program that is gone.
    monkeypatch.setattr(approvals, "PRESENCE_MS", 3_600_000)
    tenant.admin.set_policy(approval_tools=["pay"])


def ask(tenant: Tenant, call_id: str, run_id: str = "r1", **fields: Any) -> tuple[str, str]:
    """Return what became of a call, and which question it asked."""
    response = tenant.gate(
        call_id=call_id, tool_name="pay", workflow_id="w", run_id=run_id, renews=True, **fields
    )
    reply = response.json()
    if response.status_code == 200:
        return reply["decision"], reply.get("approval_id", "")
    assert reply["error_code"] == "GD-X001", reply
    return "refused", reply["details"]["approval_id"]


def leave(tenant: Tenant, approval_id: str, *, stays: bool = True) -> str:
    body = {"reservation_id": approval_id, "stays": stays}
    key = {"idempotency-key": f"{approval_id}-{next(_leaves)}"}
    response = tenant.http.post("/gate/release", json=body, headers=key)
    return str(response.json().get("state"))


_leaves = itertools.count()


@attrs.define
class Asked:
    """A question as it should be: whose it is (None: left), and what a person has said."""

    approval_id: str
    run_id: str
    holder: str | None
    answer: bool | None = None


@pytest.mark.parametrize("seed", range(8))
def test_each_answer_counts_for_one_call_of_its_kind(tenant: Tenant, seed: int) -> None:
    """Calls come, leave, come again and are answered in any order, in two runs at once."""
    draw = random.Random(seed)
    numbers = itertools.count()
    open_: list[Asked] = []

    def of(call_id: str) -> Asked | None:
        return next((each for each in open_ if each.holder == call_id), None)

    def comes(call_id: str, run_id: str) -> None:
        decision, approval_id = ask(tenant, call_id, run_id)
        asked = of(call_id)
        if asked is None:
            left = [each for each in open_ if each.holder is None and each.run_id == run_id]
            asked = left[0] if left else Asked(approval_id, run_id, call_id)
            if not left:
                open_.append(asked)
            asked.holder = call_id
        if asked.answer is None:
            assert (decision, approval_id) == ("pending", asked.approval_id)
            return
        assert decision == ("allow" if asked.answer else "refused")
        open_.remove(asked)

    for _ in range(STEPS):
        held = [each for each in open_ if each.holder is not None]
        step = draw.choice(["new", "again", "leave", "leave", "answer", "withdraw"])
        if step == "new" or not open_:
            comes(f"c{next(numbers)}", draw.choice(RUNS))
        elif step == "answer":
            asked = draw.choice(open_)
            if asked.answer is None:
                asked.answer = draw.random() < 0.6
                tenant.admin.answer_approval(asked.approval_id, approved=asked.answer)
        elif held and step == "again":
            asked = draw.choice(held)
            comes(str(asked.holder), asked.run_id)
        elif held:
            asked = draw.choice(held)
            refused = asked.answer is False
            assert leave(tenant, asked.approval_id, stays=step == "leave") == (
                "None" if refused else "withdrawn"
            )
            is_kept = step == "leave" and not refused and not any(
                each.holder is None and each.run_id == asked.run_id for each in open_
            )  # fmt: skip
            asked.holder = None
            if not is_kept:
                open_.remove(asked)
    pending = {each["approval_id"] for each in tenant.admin.approvals("pending")}
    assert pending == {each.approval_id for each in open_ if each.answer is None}


@pytest.mark.parametrize(
    "fields", [{"run_id": "r2"}, {"agent": "another"}, {"user": "another"}], ids=str
)
def test_another_call_does_not_take_it_over(tenant: Tenant, fields: dict[str, str]) -> None:
    _, first = ask(tenant, "c1")
    leave(tenant, first)
    tenant.admin.answer_approval(first, approved=True)
    decision, second = ask(tenant, "c2", **fields)
    assert decision == "pending"
    assert second != first
    assert ask(tenant, "c3") == ("allow", "")


def test_nor_does_another_key(tenant: Tenant) -> None:
    _, first = ask(tenant, "c1")
    leave(tenant, first)
    tenant.admin.answer_approval(first, approved=True)
    other = {"x-api-key": tenant.admin.create_key("another")}
    assert ask(tenant, "c2", headers=other)[0] == "pending"


def test_an_answer_grows_as_old_as_a_question_may(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["pay"], approval_timeout_ms=300)
    numbers = itertools.count()

    def answered_in_time() -> tuple[str, str] | None:
        """Ask and answer; return the run and the question, unless that has taken too long."""
        run_id = f"r{next(numbers)}"
        _, asked = ask(tenant, f"c-{run_id}", run_id)
        leave(tenant, asked)
        try:
            tenant.admin.answer_approval(asked, approved=True)
        except AdminError as exc:
            if exc.status != 409:
                raise
            return None
        return run_id, asked

    run_id, first = until(answered_in_time) or ("", "")

    def is_asked_anew() -> bool:
        """Look as another run, which takes over nothing, how late it is; then ask."""
        (known,) = [each for each in tenant.admin.approvals(None) if each["approval_id"] == first]
        _, probe = ask(tenant, f"p{next(numbers)}", f"probe-{next(numbers)}")
        (probed,) = [each for each in tenant.admin.approvals(None) if each["approval_id"] == probe]
        return bool(probed["requested_at_ms"] >= known["answered_at_ms"] + 300)

    until(is_asked_anew)
    decision, second = ask(tenant, "c2", run_id)
    assert decision == "pending"
    assert second != first


def test_without_an_answer_in_time_it_is_asked_anew(tenant: Tenant) -> None:
    tenant.admin.set_policy(approval_tools=["pay"], approval_timeout_ms=200)
    _, first = ask(tenant, "c1")
    leave(tenant, first)
    until(lambda: tenant.admin.approvals("expired"))
    tenant.admin.set_policy(approval_tools=["pay"])  # the next one has time
    decision, second = ask(tenant, "c2")
    assert decision == "pending"
    assert second != first
    leave(tenant, second)
    assert ask(tenant, "c3") == ("pending", second)


def test_a_caller_that_has_left_need_not_be_present(tenant: Tenant) -> None:
    """It is open until its deadline; who takes it over is watched again."""
    _, first = ask(tenant, "c1")
    leave(tenant, first)
    (left,) = tenant.admin.approvals("pending")
    assert left.get("present_until_ms") is None
    ask(tenant, "c2")
    (taken,) = tenant.admin.approvals("pending")
    assert taken["approval_id"] == first
    assert taken["present_until_ms"] is not None
