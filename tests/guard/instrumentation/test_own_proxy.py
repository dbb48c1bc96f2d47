"""Which requests go to the proxy of the run, and which only look like it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from guard.instrumentation import own_proxy


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    own_proxy.know(None)


def test_host_and_port_decide() -> None:
    own_proxy.know("http://127.0.0.1:4711")
    assert own_proxy.is_at("127.0.0.1", 4711)
    assert own_proxy.is_at("localhost", "4711")
    assert not own_proxy.is_at("127.0.0.1", 4712)
    assert not own_proxy.is_at("api.openai.com", 4711)
    assert not own_proxy.is_at("127.0.0.1", None)


def test_a_proxy_elsewhere_is_not_on_this_machine() -> None:
    own_proxy.know("http://proxy.example:80")
    assert own_proxy.is_at("proxy.example", 80)
    assert not own_proxy.is_at("localhost", 80)


@pytest.mark.parametrize(
    "url", [None, "", "nonsense", "http://127.0.0.1", "http://h:port", "http://[x"]
)
def test_without_an_address_there_is_none(url: str | None) -> None:
    own_proxy.know("http://127.0.0.1:4711")
    own_proxy.know(url)
    assert own_proxy.known is None
    assert not own_proxy.is_at("127.0.0.1", 4711)
