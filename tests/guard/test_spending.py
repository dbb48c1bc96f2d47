"""`guard.spend`: what a workflow has spent, asked of the real gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import guard
from guard.breaker.exceptions import GuardError, GuardTransportError
from guard.core import wire
from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway
from guard.scope.scope import current_scope
from tests.guard.conftest import Tenant
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until

MODEL = "test-model"
TOKEN = 1_000
CENT = wire.NANOUSD_PER_CENT


@pytest.fixture
def priced(tenant: Tenant) -> None:
    """A thousand nano-dollars for each token."""
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)


def use(tokens: int) -> None:
    guard.track_llm(tokens, 0, model=MODEL)


@pytest.mark.usefixtures("runtime", "priced")
class TestWhatWasSpent:
    def test_what_was_just_recorded_counts(self) -> None:
        with guard.workflow("w") as flow:
            use(500)
            first = guard.spend()
            use(250)
            second = guard.spend()
        assert (first.workflow_id, first.run_id) == ("w", flow.run_id)
        assert first.is_known
        assert (first.spent_nanousd, second.spent_nanousd) == (500 * TOKEN, 750 * TOKEN)
        assert second.run_spent_nanousd == 750 * TOKEN
        assert second.waiting_events == 0
        assert second.spent_dollars == second.run_spent_dollars == pytest.approx(0.00075)

    def test_a_run_is_a_part_of_its_workflow(self) -> None:
        for tokens in (500, 250):
            with guard.workflow("w") as flow:
                use(tokens)
                now = guard.spend()
        assert (now.spent_nanousd, now.run_spent_nanousd) == (750 * TOKEN, 250 * TOKEN)
        finished = guard.spend(workflow="w")
        assert (finished.spent_nanousd, finished.run_spent_nanousd) == (750 * TOKEN, None)
        again = guard.spend("w", run=flow.run_id)
        assert (again.run_id, again.run_spent_nanousd) == (flow.run_id, 250 * TOKEN)

    def test_what_was_charged_in_doubt_stands_apart(self, tenant: Tenant) -> None:
        tenant.admin.set_budget(100, scope_kind="workflow", scope_id="w")
        lost = {"model": MODEL, "cost_nanousd": 400, "estimated": True, "estimate": "bound"}
        with guard.workflow("w") as flow:
            use(1)
            event = {"event_id": "lost", "type": "llm", "at_ms": 1, "workflow_id": "w",
                     "run_id": flow.run_id, "data": lost}  # fmt: skip
            headers = {"X-API-Key": tenant.key, "X-Guard-Protocol": "3"}
            batch = {"batch_id": "b", "sent_at_ms": 1, "events": [event]}
            httpx.post(f"{tenant.url}/api/v1/events", json=batch, headers=headers)
            found = guard.spend()
        assert (found.spent_nanousd, found.uncertain_nanousd) == (TOKEN + 400, 400)
        assert (found.run_spent_nanousd, found.run_uncertain_nanousd) == (TOKEN + 400, 400)
        assert [limit.uncertain_nanousd for limit in found.limits] == [400]
        assert found.uncertain_dollars == pytest.approx(4e-7)

    def test_the_async_twin(self) -> None:
        async def main() -> tuple[guard.Spend, guard.Spend]:
            async with guard.workflow("w"):
                use(500)
                return await guard.aio.spend(), await guard.aio.spend("other")

        own, other = asyncio.run(main())
        assert own.spent_nanousd == 500 * TOKEN
        assert (other.is_known, other.spent_nanousd, other.run_id) == (False, 0, None)

    def test_outside_of_a_workflow_it_is_the_default_one(self) -> None:
        use(500)
        assert (guard.spend().workflow_id, guard.spend().spent_nanousd) == ("default", 500 * TOKEN)
        with pytest.raises(TypeError, match="workflow must be a string"):
            guard.spend(17)  # type: ignore[arg-type]

    def test_the_run_of_another_workflow_is_not_told(self) -> None:
        with guard.workflow("other") as other:
            use(500)
            guard.spend()
        with pytest.raises(GuardTransportError, match="no such run of this workflow"):
            guard.spend("w", run=other.run_id)


class TestLimits:
    @pytest.mark.usefixtures("runtime", "priced")
    def test_every_budget_that_applies_with_what_is_left(self, tenant: Tenant) -> None:
        tenant.admin.set_budget(100)
        tenant.admin.set_budget(5, scope_kind="workflow", scope_id="w*", window="day")
        tenant.admin.set_budget(3, scope_kind="user", scope_id="*")
        tenant.admin.set_budget(1, scope_kind="workflow", scope_id="other")
        tenant.admin.set_budget(1, scope_kind="model", scope_id="*")
        with guard.workflow("w1"), guard.context.user("u"):
            use(500)
            limits = guard.spend().limits
            assert [each.scope for each in limits] == [
                "user u (total)", "workflow w1 (day)", "organisation (total)",
            ]  # fmt: skip
            assert {each.spent_nanousd for each in limits} == {500 * TOKEN}
            assert limits[0].left_nanousd == 3 * CENT - 500 * TOKEN
            assert limits[0].left_dollars == pytest.approx(0.0295)
            assert limits[0].resets_at_ms is None
            assert limits[1].resets_at_ms is not None
        assert guard.spend("w1").limits[0].scope == "workflow w1 (day)"

    @pytest.mark.usefixtures("runtime", "priced")
    def test_tokens_and_calls_stand_apart(self, tenant: Tenant) -> None:
        tenant.admin.set_budget(limit_tokens=1000)
        tenant.admin.set_budget(
            limit_calls=3, counts=["search*"], scope_kind="workflow", scope_id="*", window="day"
        )

        @guard.protect
        def search() -> None:
            use(500)

        with guard.workflow("w"):
            search()
            now = guard.spend()
        assert now.limits == ()
        tokens, calls = sorted(now.counted, key=lambda each: each.unit, reverse=True)
        assert (tokens.scope, tokens.used, tokens.left) == ("organisation (total)", 500, 500)
        assert (calls.scope, calls.used, calls.left) == ("workflow w (day)", 1, 2)
        assert (tokens.counts, calls.counts) == ((), ("search*",))
        assert calls.resets_at_ms is not None

    @pytest.mark.usefixtures("runtime", "priced")
    def test_a_budget_that_no_call_has_met_counts_what_was_spent_before(
        self, tenant: Tenant
    ) -> None:
        with guard.workflow("w"):
            use(500)
            guard.spend()
            for window in ("total", "hour", "day", "month"):
                tenant.admin.set_budget(5, scope_kind="workflow", scope_id="*", window=window)
            limits = guard.spend().limits
        assert len(limits) == 4
        assert {each.spent_nanousd for each in limits} == {500 * TOKEN}

    @pytest.mark.usefixtures("priced")
    def test_what_is_set_aside_is_not_spent(
        self, start: Callable[..., guard.GuardRuntime], tenant: Tenant
    ) -> None:
        tenant.admin.set_budget(5, scope_kind="workflow", scope_id="*")
        runtime = start()
        until(lambda: runtime.link.session is not None and runtime.link.session.asks.can_lease,
              WAIT_S)  # fmt: skip

        seen: list[guard.Spend] = []

        def agrees() -> bool:
            seen.append(guard.spend())
            return seen[-1].limits[0].set_aside_nanousd >= seen[-1].set_aside_nanousd

        @guard.protect
        def work() -> None:
            # More may be granted to this process just after the gateway has answered.
            until(agrees)

        with guard.workflow("w"):
            work()
        inside = seen[-1]
        assert inside.spent_nanousd == 0
        assert inside.set_aside_nanousd > 0
        assert inside.set_aside_dollars == inside.set_aside_nanousd / wire.NANOUSD_PER_DOLLAR
        assert guard.spend("other").set_aside_nanousd == 0


class TestWhoMayAsk:
    def test_a_key_for_one_workflow_reads_that_one(
        self, start: Callable[..., guard.GuardRuntime], tenant: Tenant
    ) -> None:
        start(api_key=tenant.admin.create_key("own", workflow_id="w"))
        assert guard.spend("w").workflow_id == "w"
        with pytest.raises(GuardError) as caught:
            guard.spend("other")
        assert caught.value.error_code == "GD-W004"

    def test_another_organisation_is_not_told(self, tenant: Tenant, gateway: Gateway) -> None:
        headers = {"X-Guard-Protocol": "3"}

        def ask(key: str) -> Any:
            url = f"{tenant.url}{wire.SPEND_PATH}?workflow=w"
            return httpx.get(url, headers={**headers, "X-API-Key": key}).json()

        event = {"event_id": "e", "type": "llm", "at_ms": 1, "workflow_id": "w",
                 "data": {"model": "gpt-4o", "cost_nanousd": 7}}  # fmt: skip
        sent = httpx.post(
            f"{tenant.url}/api/v1/events",
            json={"batch_id": "b", "sent_at_ms": 1, "events": [event]},
            headers={**headers, "X-API-Key": tenant.key},
        )
        assert sent.status_code == 202
        assert ask(tenant.key)["spent_nanousd"] == 7
        gateway.admin.create_organisation("strangers")
        admin = AdminClient(gateway.base_url, gateway.admin_key, organisation="strangers")
        with contextlib.closing(admin):
            assert ask(admin.create_key("stranger")) == {"workflow_id": "w"}
        assert ask("gdk_wrong")["status"] == 401

    def test_signed_answers_are_checked(
        self, start: Callable[..., guard.GuardRuntime], tenant: Tenant
    ) -> None:
        made = tenant.admin.request("POST", "/keys", {"name": "signed", "signed": True})
        start(api_key=made["api_key"], hmac_secret=made["hmac_secret"])
        with guard.workflow("wörk flow/1"):
            assert guard.spend().workflow_id == "wörk flow/1"

    @pytest.mark.parametrize(
        ("query", "status"),
        [("", 400), ("?workflow=", 400), (f"?workflow={'w' * 257}", 400), ("?workflow=%00", 400),
         ("?workflow=w&user=", 200)],
    )  # fmt: skip
    def test_bad_questions_are_refused(self, query: str, status: int, tenant: Tenant) -> None:
        headers = {"X-Guard-Protocol": "3", "X-API-Key": tenant.key}
        found = httpx.get(f"{tenant.url}{wire.SPEND_PATH}{query}", headers=headers)
        assert found.status_code == status
        assert httpx.post(f"{tenant.url}{wire.SPEND_PATH}", headers=headers).status_code == 405


class TestWithoutAnAnswer:
    def test_offline_is_an_error_that_says_so(self, tenant: Tenant, proxy: ChaosProxy) -> None:
        seen: list[str] = []
        guard.on_error(lambda exc, context: seen.append(context.stage))
        guard.GuardRuntime(api_key=tenant.key, api_url=proxy.url, timeout_ms=300).open()
        proxy.retarget("http://127.0.0.1:9")
        proxy.cut()
        with guard.workflow("w"):
            use(5)
            with pytest.raises(GuardTransportError):
                guard.spend()
        assert "spend" in seen  # a delivery in the background fails too, before it or after it

    def test_a_gateway_that_is_too_old_is_named(self, runtime: guard.GuardRuntime) -> None:
        session = runtime.link.session
        assert session is not None
        assert session.features is not None
        session.features = session.features - {wire.FEATURE_SPEND}
        with pytest.raises(GuardTransportError, match="too old to tell"):
            guard.spend("w")

    def test_after_the_end(self, runtime: guard.GuardRuntime) -> None:
        guard.shutdown()
        with pytest.raises(GuardError), guard.workflow("w"):
            guard.spend()

    def test_switched_off_nothing_is_spent(self) -> None:
        off = guard.GuardRuntime(mode="off")
        with guard.workflow("w"):
            assert guard.spend() == guard.Spend("w", run_id=current_scope.get().run_id)
            assert asyncio.run(guard.aio.spend("v")) == guard.Spend("v")
        off.shutdown()
