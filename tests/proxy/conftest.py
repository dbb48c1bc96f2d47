"""A gateway for the proxies of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from guard.gateway.embedded import Gateway, run_gateway
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.raw_upstream import RawUpstream


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """Run a gateway of the test's own: one learns from answers what the next requests may cost."""
    with run_gateway() as running:
        yield running


@pytest.fixture(scope="package")
def raw_upstream() -> Iterator[RawUpstream]:
    upstream = RawUpstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="package")
def shared_vendor() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


@pytest.fixture
def vendor(shared_vendor: StandIn) -> StandIn:
    shared_vendor.reset()
    return shared_vendor
