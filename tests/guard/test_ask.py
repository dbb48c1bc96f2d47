"""``guard.context.ask``: what the person who approves is shown."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import context
from guard.gateway.api import health
from guard.scope.scope import current_scope
from tests.support.waiting import until

SHOWN = ("Pay this invoice?", {"to": "ACME", "amount": "12.50 EUR"})


@guard.protect
def pay() -> str:
    return "paid"


@guard.protect
async def pay_async() -> str:
    return "paid"


def asked(tenant: Any, work: Callable[[], Any]) -> Any:
    """Run something that asks a person, who says yes; return what they saw."""
    thread = threading.Thread(target=work)
    thread.start()
    (approval,) = until(lambda: tenant.admin.approvals())
    tenant.admin.answer_approval(approval["approval_id"], approved=True)
    thread.join(120)
    assert not thread.is_alive()
    return approval["message"], approval["details"]


@pytest.fixture(params=["auto", "http"])
def transport(request: pytest.FixtureRequest, start: Any, tenant: Any) -> guard.GuardRuntime:
    tenant.admin.set_policy("p", approval_tools=["pay*"])
    runtime: guard.GuardRuntime = start(transport_mode=request.param)
    until(lambda: runtime.enforcement.control.tools)
    return runtime


@pytest.mark.usefixtures("transport")
class TestWhatIsShown:
    def test_with(self, tenant: Any) -> None:
        def work() -> None:
            with guard.workflow("w"), context.ask(*SHOWN):
                pay()

        assert asked(tenant, work) == SHOWN

    def test_async_with(self, tenant: Any) -> None:
        async def work() -> None:
            async with guard.workflow("w"), context.ask(message=SHOWN[0], details=SHOWN[1]):
                await pay_async()

        assert asked(tenant, lambda: asyncio.run(work())) == SHOWN

    def test_decorators(self, tenant: Any) -> None:
        assert asked(tenant, context.ask(*SHOWN)(pay)) == SHOWN

        async def work() -> None:
            await context.ask(*SHOWN)(pay_async)()

        assert asked(tenant, lambda: asyncio.run(work())) == SHOWN

    def test_the_innermost_counts_and_an_empty_one_shows_nothing(self, tenant: Any) -> None:
        def work() -> None:
            with context.ask("outer", {"a": 1}), context.ask("inner"):
                pay()

        def silent() -> None:
            with context.ask("outer", {"a": 1}), context.ask():
                pay()

        assert asked(tenant, work) == ("inner", {})
        assert asked(tenant, silent) == ("", {})

    def test_not_unasked(self, tenant: Any) -> None:
        def work() -> None:
            with context.ask(*SHOWN):
                pass
            pay()

        assert asked(tenant, work) == ("", {})


@pytest.mark.usefixtures("switched_off")
def test_it_holds_in_what_is_opened_inside() -> None:
    with context.ask("m") as outer, guard.workflow("w"), guard.span("s"):
        assert current_scope.get().note == outer._note
    assert current_scope.get().note is None


def test_errors_come_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"details\['file'\] is a object"):
        context.ask("m", {"file": object()})


def test_nothing_of_it_is_logged_or_reported(
    tenant: Any, start: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    tenant.admin.set_policy("p", approval_tools=["pay"])
    runtime = start(debug=True)
    until(lambda: runtime.enforcement.control.tools)

    def work() -> None:
        with guard.workflow("w"), context.ask("canary-5e", {"x": "canary-5e"}):
            pay()

    assert asked(tenant, work) == ("canary-5e", {"x": "canary-5e"})
    runtime.flush(10)
    assert "canary" not in caplog.text
    assert "canary" not in "".join(capsys.readouterr())
    assert "canary" not in json.dumps(tenant.admin.events(workflow_id="w"))


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that knows nothing of notes."""
    features = tuple(each for each in health.FEATURES if each != "approval_notes")
    monkeypatch.setattr(health, "FEATURES", features)


@pytest.mark.usefixtures("older")
def test_an_older_gateway_is_told_nothing(tenant: Any, start: Any) -> None:
    tenant.admin.set_policy("p", approval_tools=["pay"])
    runtime = start()
    until(lambda: runtime.enforcement.control.tools)

    def work() -> None:
        with context.ask(*SHOWN):
            pay()

    assert asked(tenant, work) == ("", {})
    assert tenant.admin.approvals(None)[0]["present_until_ms"] is None
