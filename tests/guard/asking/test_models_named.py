"""A request that names several models is held, and allowed, as the dearest of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

import guard
from guard.breaker.exceptions import GuardBlockedException, GuardBudgetError, GuardError
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import Tenant
from tests.support.vendor_transport import VendorTransport
from tests.support.waiting import WAIT_S

_names = itertools.count(1)
URL: Final = "https://openrouter.ai/api/v1/chat/completions"
CHEAP, DEAR = "openai/gpt-4o-mini", "openai/o1-pro"  # $0.6 and $600 per million tokens of output
Bodies = list[dict[str, Any]]


def ask(bodies: Bodies, **members: Any) -> None:
    """Send a chat that may be answered by the dearest model that it names."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        bodies.append(body)
        usage = {"prompt_tokens": 5, "completion_tokens": 100, "total_tokens": 105}
        model = body.get("models", [body["model"]])[-1]
        said = {"id": f"it-{next(_names)}", "model": model, "choices": [], "usage": usage}
        return httpx.Response(200, json={"object": "chat.completion", "created": 1, **said})

    body = {"model": CHEAP, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    with httpx.Client(transport=VendorTransport(answer)) as client:
        client.post(URL, json=body | members)


def sent(workflow: str, bodies: Bodies, **members: Any) -> None:
    with guard.context.workflow(workflow):
        ask(bodies, **members)


@pytest.fixture
def limited(tenant: Tenant) -> str:
    workflow = f"named-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=20_000_000)
    return workflow


def test_the_dearest_model_is_held(
    limited: str, start: Callable[..., GuardRuntime], tenant: Tenant
) -> None:
    runtime = start(wait_for_room_ms=0)
    bodies: Bodies = []
    sent(limited, bodies)
    with pytest.raises(GuardBudgetError):
        sent(limited, bodies, models=[DEAR])
    with pytest.raises(GuardBudgetError):
        sent(limited, bodies, models=[CHEAP, DEAR])
    sent(limited, bodies, models=[CHEAP])
    assert len(bodies) == 2
    runtime.flush(timeout=WAIT_S)
    assert 0 < tenant.spent_nanousd(limited) < 1_000_000


def test_what_answers_is_charged_and_the_rest_comes_back(
    start: Callable[..., GuardRuntime], tenant: Tenant
) -> None:
    workflow = f"named-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=100_000_000)
    runtime = start(wait_for_room_ms=0)
    bodies: Bodies = []
    sent(workflow, bodies, models=[DEAR])
    runtime.flush(timeout=WAIT_S)
    assert 60_000_000 <= tenant.spent_nanousd(workflow) < 65_000_000
    for _ in range(3):  # cheap ones still fit: nothing of the hold is left
        sent(workflow, bodies, models=[CHEAP])
        runtime.flush(timeout=WAIT_S)
    assert len(bodies) == 4


def test_each_model_that_is_named_has_to_be_allowed(
    limited: str, start: Callable[..., GuardRuntime], tenant: Tenant
) -> None:
    tenant.admin.set_policy("no-pro", models_block=[DEAR])
    start()
    bodies: Bodies = []
    sent(limited, bodies)
    with pytest.raises(GuardBlockedException, match="the model is blocked"):
        sent(limited, bodies, models=[CHEAP, DEAR], max_tokens=1)
    assert len(bodies) == 1


def test_a_budget_of_a_model_that_may_answer_counts(
    limited: str, start: Callable[..., GuardRuntime], tenant: Tenant
) -> None:
    tenant.admin.set_budget(scope_kind="model", scope_id=DEAR, limit_nanousd=1)
    start(wait_for_room_ms=0)
    bodies: Bodies = []
    sent(limited, bodies)
    with pytest.raises(GuardBudgetError):
        sent(limited, bodies, models=[DEAR], max_tokens=1)
    assert len(bodies) == 1


def test_a_router_is_refused_and_the_refusal_says_what_trusts_it(
    limited: str, start: Callable[..., GuardRuntime]
) -> None:
    runtime = start()
    bodies: Bodies = []
    said = "name models, or trust its choice with --trust model:openrouter/auto"
    with pytest.raises(GuardError, match=said):
        sent(limited, bodies, model="openrouter/auto")
    assert bodies == []
    runtime.shutdown()
    start(trust=["model:openrouter/auto"])
    sent(limited, bodies, model="openrouter/auto")
    assert len(bodies) == 1
