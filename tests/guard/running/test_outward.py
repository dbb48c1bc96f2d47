"""What the forward proxy of a run takes over from the user's variables."""

from __future__ import annotations

import os
import urllib.request
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.running import outward, routes
from guard.running.outward import HERE, UserProxies, UserProxy

URL = "http://127.0.0.1:4711"


def test_without_a_proxy_of_the_users_https_alone_is_led() -> None:
    assert outward.variables({}, URL) == {
        "HTTPS_PROXY": URL, "https_proxy": URL, "NO_PROXY": HERE, "no_proxy": HERE,
        "NODE_USE_ENV_PROXY": "1",
    }  # fmt: skip


def test_the_users_own_are_behind_it() -> None:
    environ = {"HTTP_PROXY": "http://a:1", "all_proxy": "http://b:2", "NO_PROXY": "*",
               "NODE_USE_ENV_PROXY": "0"}  # fmt: skip
    assert outward.variables(environ, URL) == dict.fromkeys(
        ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "all_proxy"), URL
    ) | {"NO_PROXY": HERE, "no_proxy": HERE}


@pytest.mark.parametrize("text", ["socks5://a:1080", "ftp://a", "http://", "http://a:x"])
def test_a_proxy_that_does_not_speak_http_stays_in_place(text: str) -> None:
    environ = {"ALL_PROXY": text, "NO_PROXY": "a, b"}
    assert UserProxies.of(environ) is None
    assert outward.variables(environ, URL) == {
        "NO_PROXY": "a,b,127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    assert "NO_PROXY" not in outward.variables(environ | {"NO_PROXY": "*"}, URL)


def test_its_credentials_are_sent_and_never_shown() -> None:
    proxy = UserProxy.of("https://me:p%40ss@proxy.corp")
    assert proxy == UserProxy("proxy.corp", 443, True, "Basic bWU6cEBzcw==")
    assert "bWU6" not in repr(proxy)


ENTRIES = st.sampled_from(
    ["corp", ".corp", "*.corp", "a.corp", "a.corp:443", "a.corp:8443", "10.0.0.0/8", "10.1.2.3",
     "::1", "[::1]", "localhost", "b", "", "*"]
)  # fmt: skip


@given(entries=st.lists(ENTRIES, max_size=3),
       host=st.sampled_from(["a.corp", "corp", "xcorp", "b", "A.CORP"]))  # fmt: skip
def test_what_goes_straight_is_what_python_reads(entries: list[str], host: str) -> None:
    """Where both know the form of an entry: another reader of the same variable is the oracle."""
    given_ = ",".join(each for each in entries if "/" not in each)
    environ = {"https_proxy": "http://p:1", "no_proxy": given_}
    with mock.patch.dict(os.environ, environ, clear=True):
        straight = bool(urllib.request.proxy_bypass_environment(f"{host}:443"))
    proxies = UserProxies.of(environ)
    assert proxies is not None
    if "*." not in given_:  # which Python does not know
        # Python takes a lone star for all only if it is the only entry.
        straight = straight or "*" in given_.split(",")
        assert (proxies.behind("https", host, 443) is None) == straight


VALUES = st.sampled_from(["", "http://h:1", "socks5://s", "*", "a,b"])
NAMES = st.sampled_from(
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY"]
)


@given(environ=st.dictionaries(NAMES, VALUES))
def test_it_is_put_back_as_it_was(environ: dict[str, str]) -> None:
    """A guarded process connects as the user's variables say."""
    made = outward.variables(environ, URL)
    changed = {name: routes.Changed(text, environ.get(name)) for name, text in made.items()}
    own = environ | made
    routes.put_back(own, changed)
    assert own == environ
