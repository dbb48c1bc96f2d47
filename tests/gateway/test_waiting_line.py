"""The gateway's line: who waits for money that is set aside, who goes first, who blocks whom."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain.commands import EncodedAnswer, RequestOrigin
from guard.gateway.domain.ledger import Reservation, drawn_on
from guard.gateway.domain.waiting import LAPSE_MS, Waiter, promised
from guard.gateway.services.waiting_line import WaitingLine
from tests.gateway.conftest import Tenant

GPT_4O: Final = {"model": "gpt-4o", "function": "openai", "kind": "llm"}
IN, OUT = 2500, 10_000  # nano-dollars per token
WORST: Final = 100 * IN + 50 * OUT
WAIT: Final = {**GPT_4O, "max_input_tokens": 100, "max_output_tokens": 50, "wait_ms": 60_000}


@pytest.fixture
def tenant(tenant: Tenant, lasting_places: None) -> Tenant:
    """A tenant whose places in line last."""
    return tenant


def ask(tenant: Tenant, name: str, attempt: int = 0, **fields: Any) -> dict[str, Any]:
    """Ask as an SDK does: each time under another key."""
    headers = {wire.HEADER_IDEMPOTENCY: f"{name}-{attempt}"}
    response = tenant.gate(call_id=name, headers=headers, **{**WAIT, **fields})
    body: dict[str, Any] = response.json()
    return body


def end(tenant: Tenant, reply: dict[str, Any], cost: int = 1000) -> None:
    tenant.send(tenant.llm(cost, reservation_id=reply["reservation_id"]))


def test_what_is_set_aside_is_waited_for_and_what_is_spent_is_refused(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    first = ask(tenant, "a")
    waiting = ask(tenant, "b")
    assert (waiting["decision"], waiting["place"]) == ("waiting", 1)
    assert waiting["retry_after_ms"] > 0
    end(tenant, first)
    assert ask(tenant, "b", 1)["decision"] == "allow"
    problem = tenant.refused(402, "GD-B004", **{**WAIT, "max_output_tokens": 60})
    assert "of $0.000751 spent" in problem["reason"]
    assert "set aside for what is under way" in problem["reason"]


def test_whoever_does_not_wait_is_refused(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    tenant.refused(402, "GD-B004", **{**WAIT, "wait_ms": 0})


def test_they_go_in_order_and_nobody_overtakes(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=2 * WORST + 5000)
    first, second = ask(tenant, "a"), ask(tenant, "b")
    assert [ask(tenant, name)["place"] for name in "cde"] == [1, 2, 3]
    end(tenant, first)
    assert ask(tenant, "e", 1)["decision"] == "waiting", "c is before it"
    assert ask(tenant, "f")["decision"] == "waiting", "and so are all three of a newcomer"
    third = ask(tenant, "c", 1)
    assert third["decision"] == "allow"
    end(tenant, second)
    assert [ask(tenant, name, 2)["decision"] for name in "ed"] == ["waiting", "allow"]


def test_a_place_is_kept_by_saying_how_long_one_has_waited(tenant: Tenant) -> None:
    """So it is at a gateway that has restarted, and at another replica."""
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    assert ask(tenant, "b")["place"] == 1
    assert ask(tenant, "c", waited_ms=30_000)["place"] == 1
    assert ask(tenant, "b", 1)["place"] == 2


def test_a_wait_that_is_over_ends_in_a_refusal(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    assert ask(tenant, "b", wait_ms=5000)["decision"] == "waiting"
    over = {"wait_ms": 5000, "waited_ms": 90_000}
    assert ask(tenant, "c", **over, idle_ms=5001)["error_code"] == "GD-B004"
    assert ask(tenant, "d", **over)["error_code"] == "GD-B004", "an SDK that does not say"


def test_the_organisation_says_how_long_one_may_wait(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    tenant.admin.update_settings(wait_for_room_max_ms=20_000)
    assert ask(tenant, "b", waited_ms=20_001, idle_ms=19_000)["decision"] == "waiting"
    assert ask(tenant, "c", waited_ms=20_001, idle_ms=20_001)["error_code"] == "GD-B004"
    tenant.admin.update_settings(wait_for_room_max_ms=0)
    assert ask(tenant, "d")["error_code"] == "GD-B004"


def test_a_renewed_wait_goes_on_at_another_gateway(tenant: Tenant) -> None:
    """Money has come back in between: the wait began anew, and is as long there as it was here."""
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    renewed = {"wait_ms": 60_000, "waited_ms": 130_000}
    for attempt in range(3):
        reply = ask(tenant, "b", attempt, **renewed, idle_ms=20_000)
        assert (reply["decision"], reply["place"]) == ("waiting", 1)
        assert 20_000 <= reply["idle_ms"] < 60_000


def test_a_top_up_has_no_place_in_line(tenant: Tenant) -> None:
    """No call waits for it: it would only hold up the leases of all others."""
    tenant.admin.set_budget(limit_nanousd=WORST)
    first = ask(tenant, "a")
    ahead = {"lease": {"ahead": True, "demand_nanousd": 1, "lease_id": first["reservation_id"]}}
    assert ask(tenant, "b", **ahead)["error_code"]
    assert ask(tenant, "c")["place"] == 1


def test_a_full_budget_of_a_user_holds_up_nobody_else(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=10 * WORST)
    tenant.admin.set_budget(scope_kind="user", scope_id="anna", limit_nanousd=WORST + 1000)
    ask(tenant, "a", user="anna")
    assert ask(tenant, "b", user="anna")["decision"] == "waiting"
    assert ask(tenant, "c", user="ben")["decision"] == "allow"


def test_calls_of_one_millisecond_have_places_of_their_own(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    places = [ask(tenant, name)["place"] for name in "bcdefghi"]
    assert places == list(range(1, 9))


def test_a_place_in_line_is_not_stored(tenant: Tenant) -> None:
    """Who waits asks every second; only what has given something back must not do so twice."""
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    lease = {"demand_nanousd": 1}
    ask(tenant, "a")
    assert ask(tenant, "b", lease=lease)["decision"] == "waiting"
    assert ask(tenant, "b", lease=lease, max_output_tokens=49)["decision"] == "waiting"
    lease = {"lease_id": "mine", "unused_nanousd": 1}
    assert ask(tenant, "c", lease=lease)["decision"] == "waiting"
    conflict = ask(tenant, "c", lease=lease, max_output_tokens=49)
    assert conflict["status"] == 409, "the key names another question"


GUESS: Final = {"kind": "call", "function": "work", "model": "unknown", "max_input_tokens": None,
                "max_output_tokens": None}  # fmt: skip
"""A call of which nothing is known takes what there is."""


@pytest.mark.parametrize(
    ("scope", "asked", "whose"),
    [
        ({}, {}, "the organisation's budget"),
        ({"scope_kind": "workflow", "scope_id": "w"}, {}, "the budget of workflow w"),
        ({"scope_kind": "user", "scope_id": "*"}, {"user": "u"}, "the budget of user u"),
        ({"scope_kind": "key"}, {}, "this key's budget"),
        ({"scope_kind": "key"}, {"key_limit": "this run's --limit"}, "this run's --limit"),
        ({"window": "day"}, {}, "the organisation's budget of the day"),
    ],
)
def test_a_refusal_says_whose_limit_it_was_and_what_would_fit(
    tenant: Tenant, scope: dict[str, Any], asked: dict[str, Any], whose: str
) -> None:
    [key_id] = [k["key_id"] for k in tenant.admin.request("GET", "/keys") if k["name"] == "test"]
    scope = {"scope_id": key_id, **scope} if scope.get("scope_kind") == "key" else scope
    tenant.admin.set_budget(limit_nanousd=100 * IN + 40 * OUT, **scope)
    asked = {"workflow_id": "w", "wait_ms": 0, **asked}

    def refused(request: str, **more: Any) -> str:
        reason, _, ends = ask(tenant, request, **asked, **more)["reason"].partition("; its window")
        assert bool(ends) == ("window" in scope)
        return reason

    assert refused("a") == (
        f"budget exhausted: {whose}: $0 of $0.00065 spent; "
        "with at most 32 output tokens it would fit"
    )
    assert ask(tenant, "b", **{**asked, "max_output_tokens": 32})["decision"] == "allow"
    assert refused("c").endswith("under way; at most $0.00008 would fit")
    assert ask(tenant, "e", **{**asked, **GUESS})["decision"] == "allow"
    declared = {"kind": "call", "function": "work", "max_input_tokens": 0}
    assert refused("d", **declared).endswith("; nothing would fit")


def test_of_a_call_the_money_is_named_that_would_fit(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=1_000_000)
    call = {"kind": "call", "max_input_tokens": 0, "max_output_tokens": 200, "wait_ms": 0}
    assert ask(tenant, "a", **call)["reason"].endswith("spent; at most $0.001 would fit")


def test_who_gives_up_leaves_the_line(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    first = ask(tenant, "a")
    assert ask(tenant, "b")["place"] == 1
    assert ask(tenant, "c")["place"] == 2
    left = tenant.http.post("/gate/release", json={"reservation_id": "b"}).json()
    assert left["state"] == "withdrawn"
    end(tenant, first)
    assert ask(tenant, "c", 1)["decision"] == "allow"


def test_calls_around_requests_do_not_block_each_other(tenant: Tenant) -> None:
    """Each has declared a part of the budget; together their requests need more than is left."""
    tenant.admin.set_budget(limit_nanousd=4 * WORST)
    holders = [
        tenant.allowed(gates_requests=True, model="gpt-4o", max_input_tokens=0, max_output_tokens=n)
        for n in (140, 140)
    ]
    decisions = []
    for attempt in range(2):
        for number, holder in enumerate(holders):
            within = {"within": holder["call_id"], "held": holder["reservation_id"]}
            reply = ask(tenant, f"r{number}", attempt, max_output_tokens=180, **within)
            decisions.append(reply["decision"])
    assert decisions == ["waiting", "waiting", "allow", "waiting"], "who waits holds nothing"


@pytest.mark.parametrize("kind", ["llm", "call"])
def test_all_calls_around_one_are_drawn_on(tenant: Tenant, kind: str) -> None:
    """Whatever they hold it for, and however deep a call or request is in them."""
    tenant.admin.set_budget(limit_nanousd=2 * WORST)
    declared = {"model": "gpt-4o", "max_input_tokens": 0, "max_output_tokens": WORST // OUT}
    around: list[str] = []
    for _ in range(2):
        around.insert(0, tenant.allowed(**declared)["reservation_id"])
    inner = {"kind": kind, "max_input_tokens": 0, "max_output_tokens": 3 * WORST // 2 // OUT}
    assert ask(tenant, "other", **inner)["decision"] == "waiting"
    assert ask(tenant, "inner", **inner, around=around)["decision"] == "allow"
    assert tenant.balance()["reserved"] <= 2 * WORST


def test_what_is_drawn_on_is_the_keys_own(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST)
    first = ask(tenant, "a")["reservation_id"]
    tenant.http.headers[wire.HEADER_API_KEY] = tenant.admin.create_key("other")
    assert ask(tenant, "b", kind="call", around=[first])["decision"] == "waiting"
    assert ask(tenant, "c", reads={first: WORST})["decision"] == "waiting"


def test_a_stream_that_the_asking_task_reads_is_not_waited_for(tenant: Tenant) -> None:
    """It gives nothing back while its reader waits; what others hold does."""
    tenant.admin.set_budget(limit_nanousd=2 * WORST)
    first, second = ask(tenant, "a"), ask(tenant, "b")
    reads = {first["reservation_id"]: WORST, "unknown": WORST}
    assert ask(tenant, "c", reads=reads)["decision"] == "waiting", "b is under way"
    end(tenant, second, WORST)
    assert ask(tenant, "d", reads=reads)["error_code"] == "GD-B004"
    assert ask(tenant, "e")["decision"] == "waiting"


def test_an_output_is_limited_to_what_is_left_beside_such_a_stream(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 100 * IN + 2048 * OUT)
    first = ask(tenant, "a")
    reads = {first["reservation_id"]: WORST}
    unbounded = {"max_output_tokens": None, "least_output_tokens": 1024}
    reply = ask(tenant, "b", reads=reads, **unbounded)
    assert (reply["decision"], reply["max_output_tokens"]) == ("allow", 2048)


@pytest.mark.parametrize("named", [50_000, None])
def test_an_output_that_no_money_pays_for_is_limited(tenant: Tenant, named: int | None) -> None:
    tenant.admin.set_budget(limit_nanousd=100 * IN + 3000 * OUT)
    reply = ask(tenant, "a", max_output_tokens=named, least_output_tokens=1024)
    assert (reply["decision"], reply["max_output_tokens"]) == ("allow", 2048)
    assert reply["reserved_nanousd"] == 100 * IN + 2048 * OUT
    second = ask(tenant, "b", max_output_tokens=named, least_output_tokens=1024)
    assert second["decision"] == "waiting", "the unspent money still pays for it"
    end(tenant, reply, 1500 * OUT)
    second = ask(tenant, "b", 1, max_output_tokens=named, least_output_tokens=1024)
    assert (second["decision"], second["max_output_tokens"]) == ("allow", 1024)
    end(tenant, second, 1000 * OUT)
    assert ask(tenant, "c", least_output_tokens=1024, max_output_tokens=named)["error_code"]


def test_a_cap_that_waits_says_when_the_turn_comes(tenant: Tenant) -> None:
    cap = {"calls": 2, "per_ms": 60_000, "on_limit": "wait"}
    tenant.admin.set_policy(rate_caps=[cap])
    began_s = time.monotonic()
    assert [ask(tenant, name)["decision"] for name in "ab"] == ["allow", "allow"]
    waiting = ask(tenant, "c")
    took_ms = (time.monotonic() - began_s) * 1000
    assert waiting["decision"] == "waiting"
    assert 50_000 - took_ms < waiting["retry_after_ms"] <= 60_000
    tenant.refused(429, "GD-R001", **{**WAIT, "wait_ms": 0})
    paced = ask(tenant, "d", wait_ms=0, paces=True)
    assert paced["decision"] == "waiting", "a turn is waited for also by who waits for no money"


def test_more_for_a_stream_is_no_other_request(tenant: Tenant) -> None:
    tenant.admin.set_policy(rate_caps=[{"calls": 1, "per_ms": 60_000}])
    assert ask(tenant, "a", workflow_id="w")["decision"] == "allow"
    tenant.refused(429, "GD-R001", **{**WAIT, "wait_ms": 0})
    assert ask(tenant, "b", wait_ms=0, workflow_id="w", grows=True)["decision"] == "allow"
    [workflow] = tenant.admin.workflows()
    assert workflow["calls"] == 1


def test_of_two_caps_the_one_that_refuses_refuses(tenant: Tenant) -> None:
    tenant.admin.set_policy(
        rate_caps=[{"calls": 9, "per_ms": 60_000, "on_limit": "wait"}, {"calls": 1}]
    )
    assert ask(tenant, "a")["decision"] == "allow"
    assert ask(tenant, "b")["error_code"] == "GD-R001"


def test_events_that_come_with_a_question_that_waits_are_recorded(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_nanousd=WORST + 1000)
    ask(tenant, "a")
    reply = ask(tenant, "b", events=[tenant.llm(10)])
    assert (reply["decision"], reply["events"]["accepted"]) == ("waiting", 1)


# -- the pure parts --------------------------------------------------------------------------------


def test_of_two_in_one_millisecond_one_is_first() -> None:
    both = [Waiter(name, 5, 10, 70, frozenset([1])) for name in "ab"]
    assert promised(both, "a", 5, 70, 6) == {}
    assert promised(both, "b", 5, 70, 6) == {1: 70}


HOLDS: Final = st.lists(
    st.tuples(st.integers(1, 50), st.sets(st.integers(1, 4), min_size=1)), max_size=5
)


@given(HOLDS, st.integers(0, 100))
def test_no_more_is_drawn_than_is_given_back(
    holds: list[tuple[int, set[int]]], amount: int
) -> None:
    around = [Reservation("r", "o", "k", "c", tuple(ids), held, held, 0, 0) for held, ids in holds]
    parts, drawn = drawn_on(around, amount)
    given_back: dict[int, int] = {}
    for reservation, part in parts:
        assert 0 < part <= reservation.held
        for each in reservation.balance_ids:
            given_back[each] = given_back.get(each, 0) + part
    for each in range(1, 5):
        held = sum(there for there, ids in holds if each in ids)
        assert drawn.get(each, 0) == min(amount, given_back.get(each, 0)), "the room it has"
        assert given_back.get(each, 0) >= min(amount, held), "all that it can use"
    assert amount or not parts


class Line:
    """A line with a clock of its own, which notes whom it wakes."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.woken: list[str] = []
        self.line = WaitingLine(lambda org, key, calls: self.woken.extend(calls), self.clock_ms)
        self.request = RequestOrigin(organisation_id="o", key_id="k")

    def clock_ms(self) -> int:
        return self.now_ms

    def wait(self, name: str, amount: int = 10, *balance_ids: int) -> None:
        call = wire.GateRequest(call_id=name, kind="llm", function="f", wait_ms=60_000)
        place = self.line.place(self.request, call)
        assert place is not None
        waits = place.waiter(name, amount, balance_ids or (1,))
        self.line.decided(self.request, call, place, EncodedAnswer(200, b"", waits=waits))

    def decide(self, name: str) -> None:
        call = wire.GateRequest(call_id=name, kind="llm", function="f", wait_ms=60_000)
        place = self.line.place(self.request, call)
        assert place is not None
        self.line.decided(self.request, call, place, EncodedAnswer(200, b""))


def test_the_first_whose_money_it_is_wakes_and_then_the_next() -> None:
    line = Line()
    for name, balance_id in (("a", 1), ("b", 2), ("c", 1)):
        line.now_ms += 1
        line.wait(name, 10, balance_id)
    line.line.freed("o", [2])
    assert line.woken == ["b"]
    line.line.freed("o", [1])
    assert line.woken == ["b", "a"]
    line.decide("a")
    assert line.woken == ["b", "a", "c"]


def test_what_is_too_little_for_the_first_wakes_a_smaller_one() -> None:
    line = Line()
    line.wait("large", 90)
    line.now_ms += 1
    line.wait("small", 10)
    line.line.freed("o", [1])
    line.wait("large", 90)
    assert line.woken == ["large", "small"]


def test_after_a_quarter_of_its_wait_a_large_one_blocks() -> None:
    line = Line()
    line.wait("large", 90)
    line.now_ms += 1
    line.wait("small", 10)
    for _ in range(20):
        line.now_ms += LAPSE_MS // 4
        line.wait("large", 90)
        line.wait("small", 10)
    line.line.freed("o", [1])
    line.wait("large", 90)
    assert line.woken == ["large"]


def test_a_place_that_nobody_asks_for_lapses() -> None:
    line = Line()
    line.wait("gone")
    line.now_ms += LAPSE_MS + 1
    assert line.line.count() == 0
    assert line.line.waiters("o") == ()


def test_each_return_of_money_begins_the_wait_anew() -> None:
    line = Line()
    call = wire.GateRequest(call_id="a", kind="llm", function="f", wait_ms=60_000)
    line.wait("a")
    line.now_ms += 3000
    line.line.freed("o", [1])
    place = line.line.place(line.request, call)
    assert place is not None
    assert place.until_ms == line.now_ms + 60_000
    line.line.freed("o", [2])
    line.now_ms += 500
    again = line.line.place(line.request, call)
    assert again is not None
    assert again.until_ms == place.until_ms
