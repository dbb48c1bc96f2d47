"""Under a limit, what a request holds that nobody has judged is held dear."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import anthropic
import httpx
import httpx2
import openai
import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError, GuardError
from guard.core.wire import dollars
from guard.proxy.refusals import told_of
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import Tenant
from tests.support.vendor_transport import vendor_transport
from tests.support.waiting import WAIT_S

LIMIT: Final = 100_000_000
_names = itertools.count(1)
Bodies = list[dict[str, Any]]


def vendor(bodies: Bodies, package: Any = httpx) -> Any:
    def answer(request: Any) -> Any:
        bodies.append(json.loads(request.content))
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        if request.url.path.endswith("/messages"):
            usage = {"input_tokens": 5, "output_tokens": 1}
            content = {"type": "message", "role": "assistant", "content": [], "usage": usage}
        else:
            content = {"object": "chat.completion", "created": 1, "choices": [], "usage": usage}
        return package.Response(200, json={"id": "it", "model": bodies[-1]["model"], **content})

    return vendor_transport(package, answer)


def chat(bodies: Bodies, **members: Any) -> None:
    client: Any = httpx.Client(transport=vendor(bodies))
    with openai.OpenAI(api_key="none", http_client=client, max_retries=0) as asking:
        asking.chat.completions.create(
            model="gpt-4o",
            max_tokens=20,
            messages=[{"role": "user", "content": "hi"}],
            extra_body=members,
        )


@pytest.fixture
def limited(tenant: Tenant) -> str:
    workflow = f"unknown-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=LIMIT)
    return workflow


def refused(workflow: str, **members: Any) -> GuardBudgetError:
    bodies: Bodies = []
    with pytest.raises(GuardBudgetError) as raised, guard.context.workflow(workflow):
        chat(bodies, **members)
    assert bodies == [], "nothing was sent"
    return raised.value


@pytest.mark.parametrize(
    ("members", "label", "named"),
    [
        ({"max_branches": 3}, "member:max_branches", "the member max_branches"),
        ({"tools": [{"type": "orbit"}]}, "tool:orbit", "the tool type orbit"),
        ({"stream_options": {"search_rounds": 2}}, "member:stream_options.search_rounds",
         "the member stream_options.search_rounds"),
    ],
)  # fmt: skip
def test_a_hold_that_does_not_fit_says_what_is_unknown_and_what_trusts_it(
    members: dict[str, Any],
    label: str,
    named: str,
    limited: str,
    start: Callable[..., GuardRuntime],
    tenant: Tenant,
) -> None:
    runtime = start(wait_for_room_ms=0)
    error = refused(limited, **members)
    needed = error.details["needed_nanousd"]
    assert needed > LIMIT
    words = (
        f"would need {dollars(needed)}: {named} is not known here; trust it with --trust {label}"
    )
    assert words in str(error)
    told = told_of(error)
    assert (told.status, told.sentence) == (400, f"guard: {words}")
    assert "is reached" not in str(error) + told.sentence
    assert dict(runtime.instrumentation.unseen._all()) == {f"dear:{label}": 1}
    runtime.shutdown()
    # By the word of whoever sets the limit, it is as if it were not there.
    trusting = start(wait_for_room_ms=0, trust=[label])
    bodies: Bodies = []
    with guard.context.workflow(limited):
        chat(bodies, **members)
    assert len(bodies) == 1
    trusting.flush(timeout=WAIT_S)
    assert 0 < tenant.spent_nanousd(limited) < LIMIT // 100


def test_under_a_limit_of_tokens_it_says_so_too(
    tenant: Tenant, start: Callable[..., GuardRuntime]
) -> None:
    workflow = f"unknown-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_tokens=5000)
    start(wait_for_room_ms=0)
    bodies: Bodies = []
    with guard.context.workflow(workflow):
        chat(bodies)
    error = refused(workflow, tools=[{"type": "orbit"}])
    assert "the tool type orbit is not known here; trust it with --trust tool:orbit" in str(error)
    assert "is reached" not in told_of(error).sentence
    assert len(bodies) == 1


def test_what_changes_nothing_passes_and_is_named_once(
    limited: str, start: Callable[..., GuardRuntime], caplog: pytest.LogCaptureFixture
) -> None:
    runtime = start()
    bodies: Bodies = []
    with guard.context.workflow(limited):
        for _ in range(3):
            chat(bodies, theme="dark")
    assert [each["theme"] for each in bodies] == ["dark"] * 3
    assert dict(runtime.instrumentation.unseen._all()) == {"unjudged:member:theme": 3}
    assert runtime.instrumentation.unseen.counts() == (), "it is no request that is not metered"
    assert caplog.text.count("member:theme") == 1


def test_an_unknown_member_within_the_limit_is_held_dear_and_charged_what_it_used(
    tenant: Tenant, start: Callable[..., GuardRuntime]
) -> None:
    workflow = f"unknown-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=10**10)
    runtime = start()
    bodies: Bodies = []
    with guard.context.workflow(workflow):
        chat(bodies, max_branches=1)
    runtime.flush(timeout=WAIT_S)
    assert len(bodies) == 1
    assert tenant.spent_nanousd(workflow) < 1_000_000


def test_strictly_both_are_refused(limited: str, start: Callable[..., GuardRuntime]) -> None:
    start(refuse_unknown=True)
    bodies: Bodies = []
    with guard.context.workflow(limited):
        chat(bodies)
    for members, label in (
        ({"theme": "dark"}, "member:theme"), ({"tools": [{"type": "orbit"}]}, "tool:orbit"),
    ):  # fmt: skip
        with pytest.raises(GuardError, match=f"--trust {label}"), guard.context.workflow(limited):
            chat(bodies, **members)
    assert len(bodies) == 1


def test_it_is_the_same_for_anthropics_client(
    limited: str, start: Callable[..., GuardRuntime]
) -> None:
    start(wait_for_room_ms=0)
    bodies: Bodies = []
    client: Any = httpx2.Client(transport=vendor(bodies, httpx2))
    asking = anthropic.Anthropic(api_key="none", http_client=client, max_retries=0)

    def ask(**members: Any) -> None:
        with guard.context.workflow(limited):
            asking.messages.create(
                model="claude-opus-5",
                max_tokens=20,
                messages=[{"role": "user", "content": "hi"}],
                extra_body=members,
            )

    ask()
    with pytest.raises(GuardBudgetError, match=r"--trust tool:orbit_20270101"):
        ask(tools=[{"type": "orbit_20270101", "name": "orbit"}])
    with pytest.raises(GuardBudgetError, match=r"--trust member:subagents"):
        ask(subagents=[{"count": 3}])
    assert len(bodies) == 1
