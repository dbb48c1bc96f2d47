"""The OpenID provider's tokens, and what strangers' sign-ins cost."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from guard.gateway.services import openid
from guard.gateway.services.openid import Flow, OpenIdError, OpenIdProvider
from tests.support.openid_provider import openid_provider
from tests.support.waiting import WAIT_S, until, until_async


@pytest.mark.parametrize(
    ("change", "header"),
    [
        ({}, {"alg": "none"}),
        ({}, {"alg": "HS256"}),
        ({"iss": "https://another.example"}, {}),
        ({"aud": "another"}, {}),
        ({"aud": ["guard", "another"]}, {}),
        ({"azp": "another"}, {}),
        ({"nonce": "another"}, {}),
        ({"nonce": None}, {}),
        ({"nonce": ["n"]}, {}),
        ({"nonce": ["another", "n"]}, {}),
        ({"iss": ["https://login.example"]}, {}),
        ({"aud": [["guard"]]}, {}),
        ({"aud": {"guard": 1}}, {}),
        ({"azp": ["guard"]}, {}),
        ({"sub": ["s"]}, {}),
        ({"sub": 7}, {}),
        ({"exp": "9999999999"}, {}),
        ({"exp": True}, {}),
        ({"exp": 1}, {}),
        ({"exp": None}, {}),
        ({"iat": None}, {}),
        ({"sub": None}, {}),
    ],
)
def test_a_token_that_is_for_somebody_else_is_refused(
    change: dict[str, object], header: dict[str, str]
) -> None:
    own = RSAKey.generate_key(2048, {"kid": "k"})
    keys = KeySet.import_key_set({"keys": [own.as_dict(private=False)]})
    provider = OpenIdProvider("https://login.example", "guard", None, "sub")
    now = int(time.time())
    right = {"iss": "https://login.example", "aud": "guard", "nonce": "n", "sub": "s",
             "exp": now + 3600, "iat": now}  # fmt: skip
    good = jwt.encode({"alg": "RS256", "kid": "k"}, right, own)
    assert provider._claims(good, keys, "n")["sub"] == "s"
    claims = {name: value for name, value in (right | change).items() if value is not None}
    if header:  # unsigned, or signed with what everybody knows
        parts = [json.dumps(each).encode() for each in ({**header, "kid": "k"}, claims)]
        token = ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts)
        public = own.as_pem(private=False)
        signed = hmac.new(public, token.encode(), hashlib.sha256).digest()
        signature = base64.urlsafe_b64encode(signed).decode().rstrip("=")
        token += "." + ("" if header["alg"] == "none" else signature)
    else:
        token = jwt.encode({"alg": "RS256", "kid": "k"}, claims, own)
    with pytest.raises(OpenIdError):
        provider._claims(token, keys, "n")
    foreign = jwt.encode({"alg": "RS256", "kid": "k"}, right, RSAKey.generate_key(2048))
    with pytest.raises(OpenIdError):
        provider._claims(foreign, keys, "n")


class Silent:
    """Stands for a provider that takes connections and answers none.

    Attributes:
        issuer: its address.
        asked: how many connections it has taken.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.issuer = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.asked.append(self._listening.accept()[0])

    def close(self) -> None:
        """End it."""
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        for each in (*self.asked, self._listening):
            each.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    found = Silent()
    yield found
    found.close()


@pytest.mark.asyncio
async def test_a_silent_provider_is_asked_once_for_all(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone can ask for a sign-in: none of them waits behind the others."""
    monkeypatch.setattr(openid, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(openid, "_RETRY_S", WAIT_S)
    provider = OpenIdProvider(silent.issuer, "guard", None, "sub")
    for _ in range(2):
        begun = [provider.begin(Flow.new("/"), "http://g/callback") for _ in range(20)]
        for failed in await asyncio.gather(*begun, return_exceptions=True):
            assert isinstance(failed, OpenIdError)
            assert "does not answer" in str(failed)
    assert len(silent.asked) == 1
    monkeypatch.setattr(openid, "_RETRY_S", 0.0)
    provider._failed_until_s = 0.0  # the time is over
    for number in (2, 3):
        with pytest.raises(OpenIdError):
            await provider.begin(Flow.new("/"), "http://g/callback")
        until(lambda number=number: len(silent.asked) == number)  # type: ignore[misc]


@pytest.mark.asyncio
async def test_one_address_leaves_others_a_place_at_the_provider(silent: Silent) -> None:
    provider = OpenIdProvider(silent.issuer, "guard", None, "sub")
    described = {"token_endpoint": f"{silent.issuer}/token"}
    provider._known = (time.monotonic(), described, KeySet([]))

    def end(address: str) -> asyncio.Task[str]:
        return asyncio.create_task(provider.end(Flow.new("/"), "c", "http://g/callback", address))

    strangers = [end("192.0.2.7") for _ in range(40)]
    persons = [end(f"192.0.2.{n}") for n in (8, 9)]
    await until_async(lambda: len(silent.asked) == 6)
    done = [each for each in strangers if each.done()]
    assert {str(each.exception()) for each in done} == {
        "too many sign-ins from this address at once; try again"
    }
    assert (len(done), any(each.done() for each in persons)) == (36, False)
    for each in (*strangers, *persons):
        each.cancel()
    await asyncio.gather(*strangers, *persons, return_exceptions=True)
    again = end("192.0.2.7")
    await until_async(lambda: len(silent.asked) == 7)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)


@pytest.mark.asyncio
async def test_the_authorities_are_read_once_for_all_sign_ins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    create = ssl.SSLContext.load_verify_locations

    def counted(self: ssl.SSLContext, *names: Any, **more: Any) -> None:
        made.append(threading.current_thread())
        create(self, *names, **more)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    monkeypatch.setattr(openid, "_TIMEOUT_S", WAIT_S)
    with openid_provider([{"sub": "1"}]) as issuer:
        own = OpenIdProvider(issuer, "guard", None, "sub")
        made.clear()
        for _ in range(3):
            assert (await own.begin(Flow.new("/"), "http://g/callback")).startswith(issuer)
            with pytest.raises(OpenIdError, match="refused to finish"):
                await own.end(Flow.new("/"), "no code", "http://g/callback", "192.0.2.7")
    assert len(made) <= 1
    assert threading.current_thread() not in made, "it takes long, and the loop serves others"
