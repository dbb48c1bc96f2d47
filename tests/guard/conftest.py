"""Fixtures: one real gateway for the run, an organisation of its own for each test."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import opentelemetry.metrics
import opentelemetry.trace  # noqa: F401  # where it is imported, spans are made
import pytest

import guard
from guard import hooks, messages
from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway, run_gateway
from guard.runtime import active
from guard.runtime.runtime import GuardRuntime, known_runtime
from guard.telemetry import spans
from tests.support.prometheus import METRICS_KEY
from tests.support.proxy import ChaosProxy
from tests.support.waiting import PATIENT, until

_numbers = itertools.count(1)


@attrs.frozen
class Tenant:
    """An organisation at the real gateway, with a key and an operator."""

    url: str
    key: str
    admin: AdminClient

    def llm_events(self, workflow_id: str | None = None) -> list[dict[str, Any]]:
        """Return the recorded LLM events."""
        return self.admin.events(workflow_id=workflow_id, type="llm")

    def spent_nanousd(self, workflow_id: str) -> int:
        """Return what a workflow has spent."""
        return int(self.admin.workflow(workflow_id)["spent_nanousd"])


@pytest.fixture(scope="session")
def gateway() -> Iterator[Gateway]:
    """The real gateway, in this process, on a free loopback port."""
    with run_gateway(metrics_key=METRICS_KEY) as running:
        yield running


@pytest.fixture
def tenant(gateway: Gateway) -> Iterator[Tenant]:
    """A fresh organisation with a key."""
    name = f"test-{next(_numbers)}"
    gateway.admin.create_organisation(name)
    admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=name)
    yield Tenant(gateway.base_url, admin.create_key("test"), admin)
    admin.close()


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[ChaosProxy]:
    """A breakable way to the real gateway."""
    chaos = ChaosProxy(gateway.base_url)
    yield chaos
    chaos.close()


def _forget_runtime() -> None:
    runtime = known_runtime()
    if runtime is not None:
        runtime.shutdown(flush=False)
        active.uninstall(runtime)  # one that was shut down still enforces what it knows


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside, and nothing left behind: runtime, hooks, message overrides.

    The gateway has more time to answer than by default: where a deadline is not the subject, a slow
    machine must not be taken for an outage.
    """
    for name in list(os.environ):
        if name.startswith("GUARD_") and not name.startswith("GUARD_TEST_"):
            monkeypatch.delenv(name)
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    _forget_runtime()  # that a test of the gateway has left
    spans.switch("test", is_on=True)
    yield
    spans.switch("test", is_on=False)
    _forget_runtime()
    hooks._errors.registrations = ()
    hooks._warnings.registrations = ()
    messages._overrides.clear()


@pytest.fixture(autouse=True)
def _telemetry_is_told(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """OpenTelemetry is imported here, so what is told to it must not have failed."""
    with caplog.at_level(logging.DEBUG, spans.logger.name):
        yield
    failed = [each for each in caplog.get_records("call") if each.name == spans.logger.name]
    assert not failed, failed[0].exc_info


@pytest.fixture
def switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No runtime and no key: contexts name what is done inside of them all the same."""
    monkeypatch.setenv("GUARD_MODE", "off")


@pytest.fixture
def start(tenant: Tenant) -> Callable[..., GuardRuntime]:
    """Start a runtime for the tenant; keyword arguments are settings."""

    def starter(**settings: Any) -> GuardRuntime:
        settings.setdefault("api_key", tenant.key)
        settings.setdefault("api_url", tenant.url)
        return guard.GuardRuntime(**settings).open()

    return starter


def settled(runtime: GuardRuntime) -> GuardRuntime:
    """Wait until a runtime has done what it does by itself once its control channel is open.

    It delivers at once what is buffered at that moment, however long its flush interval is.
    """
    channel = "poller" if runtime.settings.transport_mode == "http" else "websocket"
    until(lambda: runtime.status().control_channel == channel)
    runtime.flush()
    return runtime


@pytest.fixture
def runtime(start: Callable[..., GuardRuntime]) -> GuardRuntime:
    """A runtime with default settings, connected to the real gateway."""
    return start()
