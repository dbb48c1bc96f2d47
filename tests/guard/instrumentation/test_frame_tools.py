"""Tools that an answer over a WebSocket asks for: checked before its reader gets the message."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import guard
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.frames import KINDS, RESPONSES, Kind, Open, opened_at
from tests.guard.instrumentation.lines import LINES
from tests.guard.instrumentation.standin.sockets import TOOL, SocketVendor, socket_vendor
from tests.support.waiting import WAIT_S, until


@pytest.fixture
def vendor() -> Iterator[SocketVendor]:
    with socket_vendor() as running:
        yield running


def _converse(
    vendor: SocketVendor, opened: Open, kind: Kind, seen: list[dict[str, Any]], say: str = "5 tool"
) -> None:
    """Ask once, and read the answer; its end closes the connection."""
    line = opened_at(opened, vendor, kind)
    try:
        line.send(kind.ask(say))
        while (event := line.receive()) is not None:
            seen.append(event)
            if kind.is_done(event):
                break
    finally:
        line.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", LINES)
def test_a_blocked_tool_ends_the_connection_before_it_is_named(
    vendor: SocketVendor, tenant: Tenant, runtime: Any, opened: Open, kind: Kind
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    until(lambda: runtime.enforcement.control.tools)
    seen: list[dict[str, Any]] = []
    with pytest.raises(guard.GuardToolBlockedError) as refused, guard.workflow("support"):
        _converse(vendor, opened, kind, seen)
    error = refused.value
    assert (error.tool_name, error.workflow_id, error.action) == (TOOL, "support", "block")
    assert len(seen) >= vendor.steps
    assert TOOL not in json.dumps(seen)
    until(lambda: vendor.closed)
    runtime.flush()
    (event,) = tenant.llm_events("support")
    assert event["data"]["output_tokens"] > 0  # the vendor bills it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", LINES)
def test_other_tools_pass(
    vendor: SocketVendor, tenant: Tenant, runtime: Any, opened: Open, kind: Kind
) -> None:
    tenant.admin.set_policy("p", tools_block=["drop_*"])
    until(lambda: runtime.enforcement.control.tools)
    seen: list[dict[str, Any]] = []
    with guard.workflow("support"):
        _converse(vendor, opened, kind, seen)
    assert TOOL in json.dumps(seen)
    assert kind.is_done(seen[-1])


@pytest.mark.parametrize("opened", LINES)
@pytest.mark.parametrize("approved", [True, False])
def test_a_tool_that_needs_a_person_waits_for_the_answer(
    vendor: SocketVendor, tenant: Tenant, runtime: Any, opened: Open, approved: bool
) -> None:
    tenant.admin.set_policy("p", approval_tools=["delete_*"])
    until(lambda: runtime.enforcement.control.tools)
    seen: list[dict[str, Any]] = []
    raised: list[BaseException] = []

    def agent() -> None:
        try:
            with guard.workflow("support"):
                _converse(vendor, opened, RESPONSES, seen)
        except Exception as exc:
            raised.append(exc)

    thread = threading.Thread(target=agent)
    thread.start()
    (pending,) = until(lambda: tenant.admin.approvals("pending"))
    assert pending["tool_name"] == TOOL
    assert TOOL not in json.dumps(seen)
    tenant.admin.answer_approval(pending["approval_id"], approved=approved)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert len(tenant.admin.approvals(None)) == 1  # although the answer names the tool twice
    if approved:
        assert raised == []
        assert RESPONSES.is_done(seen[-1])
    else:
        assert [type(each) for each in raised] == [guard.GuardBlockedException]
        assert TOOL not in json.dumps(seen)


def test_one_that_goes_on_reading_gets_no_more(
    vendor: SocketVendor, tenant: Tenant, runtime: Any, start: Callable[..., Any]
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    until(lambda: runtime.enforcement.control.tools)
    for opened in LINES:
        seen: list[Any] = []

        def agent(opened: Open = opened, seen: list[Any] = seen) -> None:
            with guard.workflow("support"):
                line = opened_at(opened, vendor, RESPONSES)
                line.send(RESPONSES.ask("5 tool"))
                for _ in range(20):
                    try:
                        seen.append(line.receive())
                    except BaseException as exc:
                        seen.append(type(exc))
                line.close()

        with pytest.raises(guard.GuardToolBlockedError):
            agent()
        assert TOOL not in json.dumps([each for each in seen if isinstance(each, dict)])
        assert "response.completed" not in json.dumps([str(each) for each in seen])
