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
from tests.support.waiting import WAIT_S, until

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


@guard.protect
def pay_out(number: str, to: dict[str, str], secret: str = "canary-3b") -> str:
    return f"{number} {to['name']}"


@pytest.mark.usefixtures("transport")
class TestArguments:
    """An approval is for the arguments of its call, which the gateway has a digest of."""

    def _approval(self, tenant: Any, work: Callable[[], Any]) -> tuple[threading.Thread, Any]:
        thread = threading.Thread(target=work)
        thread.start()
        (approval,) = until(lambda: tenant.admin.approvals())
        return thread, approval

    def _answered(self, tenant: Any, work: Callable[[], Any]) -> Any:
        thread, approval = self._approval(tenant, work)
        tenant.admin.answer_approval(approval["approval_id"], approved=True)
        thread.join(120)
        return approval

    def test_equal_calls_have_one_digest_and_show_nothing(self, tenant: Any) -> None:
        found = [
            self._answered(tenant, lambda n=n, name=name: pay_out(n, to={"name": name}))  # type: ignore[misc]
            for n, name in (("1", "a"), ("1", "a"), ("2", "a"), ("1", "b"))
        ]
        digests = [each["arguments"] for each in found]
        assert digests[0] == digests[1]
        assert len(set(digests)) == 3
        assert "canary-3b" not in json.dumps(tenant.admin.approvals(None))
        assert all(each["details"] == {} for each in found)

    def test_those_that_are_named_are_shown(self, tenant: Any) -> None:
        def work() -> None:
            with context.ask("Pay?", {"why": "due"}, show=["number", "to", "nothing"]):
                pay_out("7", {"name": "ACME"})

        approval = self._answered(tenant, work)
        assert approval["details"] == {
            "why": "due", "arguments": {"number": "7", "to": {"name": "ACME"}},
        }  # fmt: skip

    def test_what_was_changed_meanwhile_does_not_run(self, tenant: Any) -> None:
        to, seen = {"name": "ACME"}, list[Any]()

        def work() -> None:
            try:
                seen.append(pay_out("7", to))
            except guard.GuardBlockedException as exc:
                seen.append(exc.reason)

        thread, approval = self._approval(tenant, work)
        to["name"] = "MALLORY"
        tenant.admin.answer_approval(approval["approval_id"], approved=True)
        thread.join(120)
        assert seen == ["its arguments were changed while a person was asked"]

    def test_async_too(self, tenant: Any) -> None:
        to, seen = {"name": "ACME"}, list[Any]()

        @guard.protect
        async def pay_later(to: dict[str, str]) -> None:
            seen.append(to)

        def work() -> None:
            try:
                asyncio.run(pay_later(to))
            except guard.GuardBlockedException as exc:
                seen.append(exc.reason)

        thread, approval = self._approval(tenant, work)
        to["name"] = "MALLORY"
        tenant.admin.answer_approval(approval["approval_id"], approved=True)
        thread.join(120)
        assert seen == ["its arguments were changed while a person was asked"]


@pytest.mark.parametrize("wrong", ["number", 7, [1]])
def test_show_takes_names(wrong: Any) -> None:
    with pytest.raises(TypeError, match="show"):
        context.ask("m", show=wrong)
    with pytest.raises(ValueError, match="arguments"):
        context.ask("m", {"arguments": 1}, show=["a"])


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
    runtime.flush(WAIT_S)
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
