"""Repeats of tools that frameworks call: each call counts once, whoever sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

import guard
from tests.guard.integrations.test_tool_seams import require, run
from tests.support.tool_asker import ToolAsker
from tests.support.tool_frameworks import ARGUMENT, WAYS, ran
from tests.support.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    ran.clear()


def rule(tenant: Any, runtime: guard.GuardRuntime, on_repeat: str = "refuse") -> None:
    cap = {"times": 2, "tools": ["delete_files"], "on_repeat": on_repeat}
    tenant.admin.set_policy("loops", repeat_caps=[cap])
    until(lambda: runtime.enforcement.counts)


@pytest.mark.parametrize("name", WAYS)
def test_the_same_call_a_third_time_is_refused(
    name: str, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    require(name)
    rule(tenant, runtime)

    def work() -> None:
        with guard.workflow("support"):
            for _ in range(4):
                run(name)

    with pytest.raises(guard.GuardToolBlockedError, match="2 times with the same arguments"):
        work()
    assert ran == [ARGUMENT] * 2


@pytest.mark.parametrize("name", WAYS)
def test_what_is_noticed_is_counted_once_for_each_call(
    name: str, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    require(name)
    rule(tenant, runtime, "notice")
    with guard.workflow("support"):
        for _ in range(3):
            run(name)
    runtime.flush()
    events = tenant.admin.events(workflow_id="support", type="span")
    digests = [each["data"]["digest"] for each in events if each["data"].get("digest")]
    assert len(digests) == 3
    assert len(set(digests)) == 1


# -- tools that the gateway has allowed where a model named them -----------------------------------


@pytest.fixture(scope="module")
def asker() -> Iterator[ToolAsker]:
    server = ToolAsker()
    yield server
    server.close()


@pytest.fixture
def model(asker: ToolAsker) -> ToolAsker:
    asker.reset()
    asker.tools = ("delete_files",)
    return asker


def ask_model(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0) as api:
        api.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Clean"}])


@guard.protect
def delete_files(path: str) -> str:
    """A protected function of the tool's name."""
    return path


def reserved(tenant: Any) -> int:
    return int(sum(each["reserved"] for each in tenant.admin.ledger()))


def test_a_tool_that_a_model_has_named_is_counted_by_its_arguments(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    """A limit of calls has the gateway asked, and money set aside, before arguments are known."""
    tenant.admin.set_budget(1000)
    tenant.admin.set_budget(limit_calls=4, counts=["delete_files"])
    rule(tenant, runtime)
    done: list[str] = []

    def work(*paths: str) -> None:
        with guard.workflow("support"):
            for path in paths:
                ask_model(model.url)
                done.append(delete_files(path))

    with pytest.raises(guard.GuardToolBlockedError, match="delete_files was called 2 times"):
        work("a", "b", "a", "a")
    assert done == ["a", "b", "a"]
    runtime.flush()
    until(lambda: reserved(tenant) == 0)
    (counted,) = [each for each in tenant.admin.ledger() if each["unit"] == "calls"]
    assert counted["committed"] == 4, "each call counts once against the limit of calls"
    assert len(runtime.tools.calls.open) == 0
