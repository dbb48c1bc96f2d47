"""A vendor answers in a dearer service tier than was asked for: the next request is held so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

import guard
from guard.core.rates import Terms
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.instrumentation.observed_tiers import ObservedTiers
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S, until

OUTPUT = 100
INPUT = 10
PRIORITY = INPUT * 2_500 + OUTPUT * 20_000
"""What the stand-in bills: gpt-5's prices of priority processing, twice the standard ones."""

ASK: dict[str, Any] = {
    "model": "gpt-5", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": OUTPUT,
}  # fmt: skip
PLAIN = RequestBound("openai", "gpt-5", 10, 20)


def reply(tier: str) -> Reply:
    usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
    message = {"role": "assistant", "content": "ok"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return Reply(None, encoded({"object": "chat.completion", "model": "gpt-5", "usage": usage,
                                "service_tier": tier, "choices": choices}))  # fmt: skip


def test_only_the_first_request_can_cost_more_than_was_held(
    tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime]
) -> None:
    standin.instead = reply("priority")
    # Three are paid for, and of a fourth more than its standard price and less than it would cost.
    limit = 3 * PRIORITY + PRIORITY * 8 // 10
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=limit)
    runtime = start()
    until(lambda: runtime.status().control_channel == "websocket", WAIT_S)

    def agent() -> None:
        with httpx.Client(timeout=WAIT_S) as client, guard.workflow("w"):
            for _ in range(4):
                assert client.post(standin.url + CHAT, json=ASK).status_code == 200
                runtime.flush()

    with pytest.raises(guard.GuardBudgetError):
        agent()
    runtime.flush()
    (row,) = (row for row in tenant.admin.ledger() if row["scope_id"] == "w")
    assert (len(standin.bodies), row["committed"]) == (3, 3 * PRIORITY)


@pytest.mark.parametrize("named", ["", "auto"])
def test_a_dearer_tier_is_remembered_for_its_host_and_model(named: str) -> None:
    tiers = ObservedTiers()
    asked = RequestBound("openai", "gpt-5", 10, 20, terms=Terms(named))
    assert tiers.bounded("a", asked) is asked
    tiers.learn("a", asked, Usage(service_tier="priority"))
    assert tiers.bounded("a", asked).terms == Terms("priority")
    other = RequestBound("openai", "gpt-4o", 10, 20)
    assert tiers.bounded("a", other) is other
    assert tiers.bounded("b", asked) is asked
    tiers.learn("a", asked, Usage())
    assert tiers.bounded("a", asked).terms.tier == "priority", "a vendor may fall back for once"


@pytest.mark.parametrize("tier", [None, "flex", "scale", "standard", "batch", "unheard-of"])
def test_tiers_that_are_no_dearer_are_not_remembered(tier: str | None) -> None:
    tiers = ObservedTiers()
    tiers.learn("a", PLAIN, Usage(service_tier=tier))
    assert tiers.bounded("a", PLAIN) is PLAIN


def test_a_tier_that_a_request_names_stays() -> None:
    tiers = ObservedTiers()
    tiers.learn("a", PLAIN, Usage(service_tier="priority"))
    for named in ("default", "flex", "priority"):
        asked = RequestBound("openai", "gpt-5", 10, 20, terms=Terms(named))
        assert tiers.bounded("a", asked) is asked
    asked = RequestBound("openai", "gpt-4o", 10, 20, terms=Terms("priority"))
    tiers.learn("a", asked, Usage(service_tier="priority"))
    plain = RequestBound("openai", "gpt-4o", 10, 20)
    assert tiers.bounded("a", plain) is plain, "it was asked for"


def test_no_more_than_some_are_kept() -> None:
    tiers = ObservedTiers()
    for number in range(3_000):
        tiers.learn("a", RequestBound("openai", f"m{number}"), Usage(service_tier="priority"))
    first, last = RequestBound("openai", "m0"), RequestBound("openai", "m2999")
    assert tiers.bounded("a", first) is first
    assert tiers.bounded("a", last).terms.tier == "priority"
