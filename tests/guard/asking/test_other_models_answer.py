"""A vendor answers by another model than was asked for: the limit holds by what is charged."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import guard
from guard.asking.request_hold import RequestHold
from guard.core.leases import Grant, Hold, Lease, LeaseBook, worst_case
from guard.core.leases import cost_of as cost_of_usage
from guard.core.model_names import named_in
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.core.wire import LlmData
from guard.gateway.domain.records import Rates
from guard.gateway.services.pricing import PriceBook
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope
from tests.guard.asking.test_stream_growth import RATES, Asked
from tests.guard.conftest import Tenant
from tests.support.waiting import WAIT_S

CHEAP, DEAR, UNKNOWN = "gpt-4o-mini", "gpt-4", "a-model-without-a-price"
TOKENS = 100
LIMIT = 30_000_000
ROUTERS = [[CHEAP, DEAR], [UNKNOWN, CHEAP, CHEAP, DEAR], [DEAR, DEAR, "gpt-4o"]]
_names = itertools.count(1)


@attrs.define
class Vendor:
    """Answers with all of ``max_tokens``, each time by the next of these models."""

    url: str = ""
    models: Iterator[str] = attrs.field(factory=lambda: iter(()))
    answered: int = 0
    lock: Any = attrs.field(factory=threading.Lock)

    def next(self) -> str:
        with self.lock:
            self.answered += 1
            return next(self.models)


@pytest.fixture(scope="module")
def serving() -> Iterator[Vendor]:
    vendor = Vendor()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            message = {"role": "assistant", "content": "ok"}
            answer = {
                "id": f"r-{next(_names)}", "object": "chat.completion", "model": vendor.next(),
                "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
                "usage": {"prompt_tokens": 8, "completion_tokens": TOKENS,
                          "total_tokens": TOKENS + 8},
            }  # fmt: skip
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    vendor.url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    yield vendor
    server.shutdown()
    server.server_close()
    thread.join()


def cost_of(model: str) -> int:
    """Return what one of the vendor's answers costs."""
    book = PriceBook([], Rates(input_per_mtok=1, output_per_mtok=1))
    return book.cost(LlmData(model=model, provider="openai", input_tokens=8,
                             output_tokens=TOKENS))[0]  # fmt: skip


def spend(vendor: Vendor, workflow: str, model: str) -> None:
    """Ask until guard refuses."""
    body = {"model": model, "max_tokens": TOKENS, "messages": [{"role": "user", "content": "hi"}]}

    @guard.workflow(workflow)
    def asks() -> None:
        while True:
            httpx.post(vendor.url, json=body, timeout=WAIT_S)

    with pytest.raises(guard.GuardBudgetError):
        asks()


def run(
    tenant: Tenant, runtime: GuardRuntime, vendor: Vendor, asked: str, answering: list[str]
) -> tuple[int, int]:
    """Spend a budget; return how many were answered, and what is charged."""
    workflow = f"answered-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=LIMIT)
    vendor.models, vendor.answered = itertools.cycle(answering), 0
    spend(vendor, workflow, asked)
    runtime.flush(timeout=WAIT_S)
    return vendor.answered, tenant.spent_nanousd(workflow)


@pytest.mark.parametrize(
    ("asked", "answering"),
    [
        (CHEAP, f"{CHEAP}-2024-07-18"), (CHEAP, DEAR), (CHEAP, UNKNOWN), (DEAR, CHEAP),
        (UNKNOWN, DEAR),
    ],
    ids=["a release of it", "a dearer one", "one without a price", "a cheaper one",
         "one with a price"],
)  # fmt: skip
def test_the_limit_is_used_and_holds(
    asked: str, answering: str, tenant: Tenant, start: Callable[..., GuardRuntime], serving: Vendor
) -> None:
    runtime = start(price_local=True, flush_interval_ms=3_600_000)
    answered, spent = run(tenant, runtime, serving, asked, [answering])
    priced = asked if answering == UNKNOWN else answering
    assert spent == answered * cost_of(priced)
    # What the first answer has cost above what was asked for is all that nothing could hold.
    assert spent <= LIMIT + cost_of(priced)
    dearest = max(cost_of(each) for each in (asked, priced) if each != UNKNOWN)
    if asked != UNKNOWN:
        assert spent >= LIMIT - 3 * dearest, "and it is used"


@given(
    text=st.text(max_size=20),
    name=st.text(st.characters(exclude_characters='"\\', categories=["L", "N", "P"]), min_size=1),
    is_spaced=st.booleans(),
    cut=st.integers(0, 200),
)
def test_an_answers_model_is_read_from_its_head(
    text: str, name: str, is_spaced: bool, cut: int
) -> None:
    separators = (", ", ": ") if is_spaced else (",", ":")
    answer = {"id": text.replace("model", ""), "model": name, "usage": {"model": 1}}
    head = json.dumps(answer, ensure_ascii=False, separators=separators).encode()
    assert named_in(head) == name
    assert named_in(head[:cut]) in ("", name)


@pytest.mark.parametrize("answering", ROUTERS, ids=" ".join)
def test_a_router_that_answers_by_any_of_them(
    answering: list[str], tenant: Tenant, start: Callable[..., GuardRuntime], serving: Vendor
) -> None:
    """At most what one answer costs is beyond the limit, whatever answers."""
    runtime = start(price_local=True, flush_interval_ms=3_600_000)
    answered, spent = run(tenant, runtime, serving, CHEAP, answering)
    charged = [CHEAP if each == UNKNOWN else each for each in answering]
    said = itertools.islice(itertools.cycle(charged), answered)
    assert spent == sum(cost_of(each) for each in said)
    assert spent <= LIMIT + cost_of(DEAR)


def test_the_event_names_the_model_that_was_asked_for(
    tenant: Tenant, start: Callable[..., GuardRuntime], serving: Vendor
) -> None:
    run(tenant, start(price_local=True), serving, DEAR, [UNKNOWN])
    (event, *_) = tenant.llm_events()
    assert (event["model"], event["price_source"]) == (UNKNOWN, "published")
    assert event["data"]["requested_model"] == DEAR


@given(
    asked=st.sampled_from(["gpt-4o", "m", None]),
    known=st.sampled_from(["", "gpt-4", "gpt-4-0613"]),
    answered=st.sampled_from(["gpt-4o", "gpt-4o-2024-08-06", "gpt-4", "m", ""]),
    cost=st.sampled_from([None, 7]),
)
@settings(max_examples=200)
def test_an_answer_is_charged_by_its_own_rates_or_not_here(
    asked: str | None, known: str, answered: str, cost: int | None
) -> None:
    asks, bound = Asked(), RequestBound("openai", asked, 8, 8)
    rates = msgspec.structs.replace(RATES, answered_by=known)
    lease = Lease("lease-1", ("w", None, None, None, "m"), 0.0)
    worst = worst_case(rates, bound)
    assert worst is not None
    lease.take(worst[0], 0.0)
    scope = Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))
    money = Hold(LeaseBook(), lease, worst[0])
    hold = RequestHold(asks, scope, bound, Grant(None, money, rates, 8))
    usage = Usage(answered, 8, 8, cost_nanousd=cost)
    hold.settle(usage)
    priced = known or asked
    families = {"gpt-4o-2024-08-06": "gpt-4o", "gpt-4-0613": "gpt-4"}
    is_anothers = bool(
        cost is None and priced and answered
        and families.get(priced, priced) != families.get(answered, answered)
    )  # fmt: skip
    assert asks.are_rates_wrong == is_anothers
    assert hold.cost_nanousd == (None if is_anothers else cost_of_usage(rates, usage))
