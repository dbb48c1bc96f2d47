"""Others patch what guard patches: in every order each request is observed once, and theirs runs.

The patchers here are made by hand; ``test_patchers.py`` does the same with those that people use.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import guard
from guard.breaker.exceptions import GuardError
from guard.instrumentation import patching
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.conftest import Observed, start_observing
from tests.guard.instrumentation.patch_seams import (
    ASK,
    CHAT,
    PATCHERS,
    SEAMS,
    PatchedSeam,
)
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S, until


class Others:
    """Code of others that wraps one method, takes back its newest wrapper, or restores all."""

    def __init__(self, seam: PatchedSeam, patcher: Callable[[Any, Any], Any]) -> None:
        self.seam = seam
        self.patcher = patcher
        self.original = seam.owner.__dict__[seam.name]
        self.saved: list[Any] = []
        self.calls = 0

    def _note(self) -> None:
        self.calls += 1

    def wrap(self) -> None:
        current = self.seam.owner.__dict__[self.seam.name]
        self.saved.append(current)
        setattr(self.seam.owner, self.seam.name, self.patcher(current, self._note))

    def unwrap(self) -> None:
        if self.saved:
            setattr(self.seam.owner, self.seam.name, self.saved.pop())

    def restore(self) -> None:
        """What a test's teardown does with the method that it saved at the start."""
        self.saved.clear()
        setattr(self.seam.owner, self.seam.name, self.original)


@pytest.fixture
def observing() -> Iterator[Observed]:
    observed = start_observing()
    observed.instrumentation.uninstall()
    yield observed
    observed.instrumentation.uninstall()


def play(steps: tuple[str, ...], others: Others, observed: Observed) -> bool:
    """Carry out steps; tell whether guard is installed at their end."""
    act = {
        "install": observed.instrumentation.install,
        "uninstall": observed.instrumentation.uninstall,
        "wrap": others.wrap,
        "unwrap": others.unwrap,
        "restore": others.restore,
    }
    for step in steps:
        act[step]()
    last = [step for step in steps if step.endswith("install")][-1:]
    return last == ["install"]


STEPS = ("install", "uninstall", "wrap", "unwrap", "restore")


def check_orders(
    standin: StandIn, observed: Observed, seam: PatchedSeam, patcher: Any, length: int
) -> int:
    original = seam.owner.__dict__[seam.name]
    number = 0
    for steps in itertools.product(STEPS, repeat=length):
        if "install" not in steps:
            continue
        number += 1
        others = Others(seam, patcher)
        installed = play(steps, others, observed)
        patching.rehook()
        before, others.calls = len(observed.calls), 0
        seam.request(standin.url)
        assert len(observed.calls) - before == installed, steps
        assert others.calls == len(others.saved), steps
        others.restore()
        observed.instrumentation.uninstall()
        assert seam.owner.__dict__[seam.name] is original, steps
    return number


@pytest.mark.generator("orders of install, wrap, unwrap and restore at each seam")
@pytest.mark.parametrize("patcher", PATCHERS)
@pytest.mark.parametrize("seam", SEAMS)
def test_every_order(
    standin: StandIn,
    observing: Observed,
    seam: str,
    patcher: str,
    count_cases: Callable[[int], None],
) -> None:
    number = check_orders(standin, observing, SEAMS[seam], PATCHERS[patcher], 2)
    assert number == 9
    count_cases(number)


@pytest.mark.long
@pytest.mark.generator("orders of install, wrap, unwrap and restore at each seam")
@pytest.mark.parametrize("patcher", PATCHERS)
@pytest.mark.parametrize("seam", SEAMS)
def test_every_long_order(
    standin: StandIn,
    observing: Observed,
    seam: str,
    patcher: str,
    count_cases: Callable[[int], None],
) -> None:
    for length in (3, 4):
        count_cases(check_orders(standin, observing, SEAMS[seam], PATCHERS[patcher], length))


@pytest.mark.parametrize("seam", SEAMS)
def test_a_second_install_hooks_again(standin: StandIn, observing: Observed, seam: str) -> None:
    others = Others(SEAMS[seam], PATCHERS["wraps"])
    observing.instrumentation.install()
    others.restore()
    observing.instrumentation.install()
    SEAMS[seam].request(standin.url)
    assert len(observing.calls) == 1


def test_a_callable_that_is_no_descriptor_is_called_as_it_would_be(
    standin: StandIn, observing: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Fake:
        def __call__(self, request: Any, **options: Any) -> httpx.Response:
            seen.append(request)
            return httpx.Response(200, request=request, json={})

    monkeypatch.setattr(httpx.Client, "send", Fake())
    observing.instrumentation.install()
    assert httpx.post(standin.url + CHAT, json=ASK).json() == {}
    assert len(seen) == 1
    assert observing.calls == [], "nothing has left, so it has cost nothing"
    observing.instrumentation.uninstall()


class TestRestored:
    """Someone restores a saved method while guard is at work."""

    @pytest.mark.parametrize(
        "seam", ["httpx", "httpx-async", "httpx2", "httpx2-async", "requests", "botocore"]
    )
    def test_the_very_next_request_is_observed(
        self, standin: StandIn, observing: Observed, seam: str
    ) -> None:
        """Below the client's method a pool's is hooked, which no test's fake replaces."""
        others = Others(SEAMS[seam], PATCHERS["wraps"])
        observing.instrumentation.install()
        others.restore()
        SEAMS[seam].request(standin.url)
        assert len(observing.calls) == 1
        assert SEAMS[seam].owner.__dict__[SEAMS[seam].name] is not others.original
        SEAMS[seam].request(standin.url)
        assert len(observing.calls) == 2

    def test_the_next_but_one_of_aiohttp_is_observed_and_the_next_is_named(
        self, standin: StandIn, observing: Observed
    ) -> None:
        seam = "aiohttp"
        others = Others(SEAMS[seam], PATCHERS["wraps"])
        observing.instrumentation.install()
        others.restore()
        SEAMS[seam].request(standin.url)
        assert sum(count for _, count in observing.instrumentation.unseen.counts()) == 1
        SEAMS[seam].request(standin.url)
        assert len(observing.calls) == 1

    def test_a_limit_holds(self, standin: StandIn, tenant: Tenant, start: Any) -> None:
        """Thirty requests of half a cent against a limit of one cent."""
        model = "patched-model"
        tenant.admin.set_price(model, input_per_mtok=10**9, output_per_mtok=10**12)
        budget = {"scope_kind": "workflow", "scope_id": "patched", "limit_nanousd": 10_000_000}
        tenant.admin.set_budget(**budget)
        saved = httpx.Client.send
        runtime = start()
        httpx.Client.send = saved  # type: ignore[method-assign]
        ask = {**ASK, "model": model, "max_tokens": 5}

        def thirty_requests() -> None:
            with guard.workflow("patched"):
                for _ in range(30):
                    httpx.post(standin.url + CHAT, json=ask, timeout=WAIT_S)

        with pytest.raises(GuardError):
            thirty_requests()
        assert len(standin.said) <= 2
        assert runtime.status().restored_hooks == ("httpx.Client.send",)

    def test_it_is_said(
        self, standin: StandIn, observing: Observed, caplog: pytest.LogCaptureFixture
    ) -> None:
        others = Others(SEAMS["requests"], PATCHERS["wraps"])
        observing.instrumentation.install()
        others.restore()
        patching.rehook()
        patching.rehook()
        named = "guard.instrumentation"  # a gateway of the process may have a log entry of its own
        (said,) = [each.getMessage() for each in caplog.records if each.name == named]
        assert said == (
            "requests.adapters.HTTPAdapter.send was replaced by other code that leaves guard out; "
            "it is hooked again"
        )
        assert patching.restored() == ("requests.adapters.HTTPAdapter.send",)

    def test_it_is_noticed_without_any_request(self, start: Any, tenant: Tenant) -> None:
        original = httpx.Client.send
        start()
        hooked = httpx.Client.send
        httpx.Client.send = original  # type: ignore[method-assign]
        until(lambda: httpx.Client.send is not original)
        assert httpx.Client.send is not hooked

    def test_by_a_second_init(self, start: Any, tenant: Tenant) -> None:
        original = httpx.Client.send
        start()
        httpx.Client.send = original  # type: ignore[method-assign]
        guard.init(tenant.key, tenant.url)
        assert httpx.Client.send is not original

    def test_before_a_protected_call(self, start: Any, tenant: Tenant) -> None:
        original = httpx.Client.send
        start()

        @guard.protect
        def body() -> bool:
            return httpx.Client.send is not original

        assert body()
        httpx.Client.send = original  # type: ignore[method-assign]
        patching.next_look_s = 0.0
        assert body()


AGAIN = """
import importlib, sys, asyncio
from types import SimpleNamespace
from guard.instrumentation import Instrumentation, patching
events = []
def record(kind, data, scope=None):
    events.append(data)
    return 1
URL = sys.argv[1]
BASE = URL.rpartition("/v1/")[0]
Instrumentation(SimpleNamespace(
    record=record, check_request=lambda scope: None, request_gate=None, tools=None,
    enter_request=lambda frame, llm: None, leave_request=lambda request: None,
)).install()

def by_httpx(name):
    importlib.import_module(name).post(URL, json={"model": "m"}, timeout=60).json()

def by_aiohttp(name):
    aiohttp = importlib.import_module(name)
    async def main():
        async with aiohttp.ClientSession() as session:
            async with session.post(URL, json={"model": "m"}) as response:
                await response.json()
    asyncio.run(main())

def by_botocore(name):
    from botocore.session import Session
    client = Session().create_client(
        "bedrock-runtime", endpoint_url=BASE, region_name="us-east-1",
        aws_access_key_id="k", aws_secret_access_key="k")
    content = [{"role": "user", "content": [{"text": "Hello?"}]}]
    client.converse(modelId="amazon.nova-pro-v1:0", messages=content)

clients = {"httpx": by_httpx, "httpx2": by_httpx, "requests": by_httpx, "aiohttp": by_aiohttp,
           "botocore": by_botocore}
for name, send in clients.items():
    for again in range(3):
        send(name)
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            del sys.modules[module]
    print(name, len(events))
    events.clear()

import requests.adapters
importlib.reload(requests.adapters)
patching.rehook()
with requests.Session() as session:
    session.mount("http://", requests.adapters.HTTPAdapter())
    session.post(URL, json={"model": "m"}).json()
print("reload", len(events))
"""


def test_clients_that_are_imported_again(standin: StandIn) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, standin.url + CHAT],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    counts = dict(line.split() for line in done.stdout.splitlines())
    every = dict.fromkeys(["httpx", "httpx2", "requests", "aiohttp", "botocore"], "3")
    assert counts == every | {"reload": "1"}, done.stderr
