"""A pytest plugin: test your agent's limits against a real gateway in the test's own process.

Load it with ``pytest_plugins = ["guard.testing"]`` in the top ``conftest.py`` (or ``-p
guard.testing``), and ask for the ``guard_sandbox`` fixture. Needs the extra
``agent-hard-stop[gateway]``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from guard.core.wire import NANOUSD_PER_CENT, NANOUSD_PER_DOLLAR
from guard.runtime import active_runtime
from guard.runtime.runtime import GuardRuntime

if TYPE_CHECKING:
    from guard.gateway.admin import AdminClient
    from guard.gateway.embedded import Gateway

__all__ = ["GuardSandbox", "guard_gateway", "guard_sandbox"]

_HEARD_WITHIN_S: Final = 10.0
"""How long a directive may take to arrive."""

_numbers = itertools.count(1)


class GuardSandbox:
    """A runtime connected to its own organisation on the test's gateway.

    Attributes:
        runtime: the process's runtime; ``guard.init()`` returns it too.
        admin: everything that an operator can do.
        api_url, api_key: for code under test that connects by itself.
    """

    def __init__(self, runtime: GuardRuntime, admin: AdminClient, api_key: str) -> None:
        self.runtime = runtime
        self.admin = admin
        self.api_url = runtime.settings.api_url
        self.api_key = api_key

    def __repr__(self) -> str:
        return f"<GuardSandbox {self.api_url}>"

    # -- what operators set --------------------------------------------------------------------

    def set_budget(
        self,
        cents: float | None = None,
        *,
        limit: str | float | None = None,
        workflow: str | None = None,
        window: str = "total",
    ) -> None:
        """Limit the spend.

        Args:
            cents: the limit in cents.
            limit: the same in dollars: ``"$0.02"`` or 0.02.
            workflow: limits this workflow; None limits everything together.
            window: ``total``, ``hour``, ``day``, ``week`` or ``month``.
        """
        kind, scope_id = ("organisation", "") if workflow is None else ("workflow", workflow)
        self.admin.set_budget(cents, limit=limit, window=window, scope_kind=kind, scope_id=scope_id)

    def set_price(
        self, model: str, *, input_usd_per_mtok: float, output_usd_per_mtok: float
    ) -> None:
        """Set a model's price in dollars for a million tokens; ``"*"`` prices every model."""
        self.admin.set_price(
            model,
            input_per_mtok=round(input_usd_per_mtok * NANOUSD_PER_DOLLAR),
            output_per_mtok=round(output_usd_per_mtok * NANOUSD_PER_DOLLAR),
        )

    def block_tools(self, *patterns: str) -> None:
        """Refuse tools by name or pattern, such as ``"delete_*"``; without any, allow all again."""
        self.admin.set_policy("sandbox", tools_block=list(patterns))

    def kill(self, workflow: str | None = None, *, reason: str = "") -> None:
        """Kill a workflow, or everything; returns when the runtime has applied it."""
        self._wait_for(self.admin.kill(workflow, reason=reason))

    def revive(self, workflow: str | None = None) -> None:
        """Lift a kill."""
        self._wait_for(self.admin.revive(workflow))

    def pause(self, workflow: str | None = None, *, reason: str = "") -> None:
        """Pause a workflow, or everything."""
        self._wait_for(self.admin.pause(workflow, reason=reason))

    def resume(self, workflow: str | None = None) -> None:
        """Lift a pause."""
        self._wait_for(self.admin.resume(workflow))

    def _wait_for(self, directive: dict[str, Any]) -> None:
        """Wait until the runtime has received a directive."""
        # A directive is applied on the background loop; the test's next call must already see it.
        ends = time.monotonic() + _HEARD_WITHIN_S
        while self.runtime.enforcement.control.seq < int(directive["seq"]):
            if time.monotonic() > ends:
                raise TimeoutError(f"the runtime has not received it: {self.runtime.status()}")
            time.sleep(0.002)

    # -- what happened -------------------------------------------------------------------------

    def events(
        self,
        type: str | None = None,  # noqa: A002  # the field's name on the wire
        *,
        workflow: str | None = None,
    ) -> list[dict[str, Any]]:
        """Deliver the buffered events and return the recorded ones, oldest first.

        Args:
            type: only these, such as ``"llm"``, ``"tool"`` or one of your own.
            workflow: only of this workflow.
        """
        self.runtime.flush(10)
        return self.admin.events(type=type, workflow_id=workflow)

    def llm_calls(self, workflow: str | None = None) -> list[dict[str, Any]]:
        """Return the payloads of the recorded LLM calls: model, tokens in each bucket, source."""
        return [dict(event["data"]) for event in self.events("llm", workflow=workflow)]

    def tool_calls(self, workflow: str | None = None) -> list[str]:
        """Return the names of the recorded tool calls."""
        return [str(event["data"]["tool_name"]) for event in self.events("tool", workflow=workflow)]

    def spent_dollars(self, workflow: str) -> float:
        """Return the spend of a workflow in dollars."""
        self.runtime.flush(10)
        return int(self.admin.workflow(workflow)["spent_nanousd"]) / NANOUSD_PER_DOLLAR

    def spent_cents(self, workflow: str) -> float:
        """Return the spend of a workflow in cents."""
        self.runtime.flush(10)
        return int(self.admin.workflow(workflow)["spent_nanousd"]) / NANOUSD_PER_CENT


@pytest.fixture(scope="session")
def guard_gateway() -> Iterator[Gateway]:
    """A real gateway in this process, on a free loopback port, gone at the end of the run."""
    from guard.gateway.embedded import run_gateway

    with run_gateway() as gateway:
        yield gateway


@pytest.fixture
def guard_sandbox(
    guard_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GuardSandbox]:
    """A fresh sandbox for one test: nothing spent, blocked or killed."""
    from guard.gateway.admin import AdminClient

    name = f"sandbox-{next(_numbers)}"
    guard_gateway.admin.create_organisation(name)
    admin = AdminClient(guard_gateway.base_url, guard_gateway.admin_key, organisation=name)
    api_key = admin.create_key("sandbox")
    # A test that failed may have left its runtime behind.
    left_over = active_runtime()
    if left_over is not None:
        left_over.shutdown(flush=False)
    monkeypatch.setenv("GUARD_API_KEY", api_key)
    monkeypatch.setenv("GUARD_API_URL", guard_gateway.base_url)
    runtime = GuardRuntime(api_key, guard_gateway.base_url).open()
    try:
        yield GuardSandbox(runtime, admin, api_key)
    finally:
        current = active_runtime()
        if current is not None:
            current.shutdown(flush=False)
        admin.close()
