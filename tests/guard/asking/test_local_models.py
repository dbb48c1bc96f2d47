"""Models on one's own machine: free where nobody knows a price, and only there."""

from __future__ import annotations

import doctest
from typing import Any

import msgspec
import pytest

from guard.core import local_address
from guard.core.local_address import is_local
from guard.core.request_bound import RequestBound
from guard.gateway.services.published import published
from guard.instrumentation.local_hosts import LocalHosts
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope
from tests.support.waiting import WAIT_S, until

LOCAL = RequestBound("openai", "nobody-knows", input_tokens=500, output_tokens=500, local=True)
NOW_MS = 1_795_000_000_000  # in November 2026
ELSEWHERE = msgspec.structs.replace(LOCAL, local=False)


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(local_address).attempted


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "ollama.localhost", "127.0.0.1", "127.8.9.10", "::1", "[::1]",
     "host.docker.internal"],
)  # fmt: skip
def test_these_are_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host",
    ["", "localhost.example.com", "127.0.0.1.example.com", "127.1.example.com", "128.0.0.1",
     "10.0.0.1", "192.168.1.5", "::2", "notlocalhost", "host.docker.internal.example.com"],
)  # fmt: skip
def test_these_are_not(host: str) -> None:
    assert not is_local(host)


def test_a_host_whose_answer_is_a_proxys_is_free_no_longer() -> None:
    hosts = LocalHosts(price_local=False)
    assert hosts.answered("localhost", {}.get)
    assert not hosts.answered("localhost", {"x-litellm-version": "1"}.get)
    assert not hosts.answered("localhost", {}.get)
    assert not hosts.are_free("localhost")
    assert hosts.are_free("127.0.0.1")
    assert not LocalHosts(price_local=True).are_free("127.0.0.1")


def scope() -> Scope:
    return Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))


def test_a_lease_for_a_local_model_covers_the_same_name_nowhere_else(
    runtime: GuardRuntime, tenant: Any
) -> None:
    until(lambda: runtime.link.session and runtime.link.session.asks.can_lease, WAIT_S)
    heard = runtime.enforcement.control.seq
    tenant.admin.set_budget(limit_nanousd=10**9)
    # A lease whose grant crosses the news of the budget covers nothing.
    until(lambda: runtime.enforcement.control.seq > heard, WAIT_S)
    assert (runtime.requests.ask(scope(), LOCAL).amount_nanousd or 0) <= 1
    covered = runtime.requests.hold(scope(), LOCAL)
    assert covered is not None
    assert covered.amount_nanousd == 0
    assert runtime.requests.hold(scope(), ELSEWHERE) is None
    assert (runtime.requests.ask(scope(), ELSEWHERE).amount_nanousd or 0) > 1000
    assert runtime.status().unpriced_models == ("nobody-knows",)


@pytest.mark.parametrize("model", ["*", "nobody-*"])
def test_what_the_organisation_has_priced_is_not_free(
    model: str, runtime: GuardRuntime, tenant: Any
) -> None:
    tenant.admin.set_price(model, input_per_mtok=10**9, output_per_mtok=10**9)
    until(lambda: runtime.link.session is not None, WAIT_S)
    hold = runtime.requests.ask(scope(), LOCAL)
    assert hold.amount_nanousd == 1_000_000


def test_names_of_local_models_are_mostly_unknown_to_the_price_list() -> None:
    """Those that the documentation names, and which of them have to be priced at zero."""
    unknown = ("llama3.2", "qwen3:8b", "gemma3:4b", "mistral", "gpt-oss:20b", "nomic-embed-text")
    assert [published("openai", name, NOW_MS) for name in unknown] == [None] * len(unknown)
    for known in ("gpt-4o", "claude-sonnet-4-5", "deepseek-r1", "mistral-nemo", "command-r"):
        assert published("openai", known, NOW_MS) is not None
