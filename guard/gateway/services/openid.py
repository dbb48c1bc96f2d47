"""Single sign-on by OpenID Connect: the authorization code flow with PKCE, over authlib.

Nothing is kept here between the two halves of a sign-in. The second half finds what it needs in a
cookie of the browser that began, so another replica can finish it.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import importlib.util
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from guard.core.plaintext import flaw_in_address
from guard.gateway.domain.operators import Person
from guard.gateway.reading import network_of

if TYPE_CHECKING:
    import ssl

    from joserfc.jwk import KeySet

logger = logging.getLogger(__name__)

CALLBACK_PATH: Final = "/sign-in/openid/callback"
FLOW_S: Final = 600
"""How long a person may take at the provider."""

_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384",
                      "ES512", "EdDSA", "Ed25519")  # fmt: skip
"""Signatures with a key pair only.

With a shared secret, such as ``HS256``, the gateway could sign what it checks. A token that names
no key pair, or ``none``, is refused.
"""

_KEEP_S: Final = 3600
"""How long the provider's description and keys are cached."""
_RETRY_S: Final = 10.0
"""How long a provider that has failed is not asked again: anyone can make the gateway ask."""
_TIMEOUT_S: Final = 10.0
"""How long a sign-in may take at the provider, whoever is before it."""
_LEEWAY_S: Final = 60
"""How much clocks may differ; also the shortest time between two reads of the provider's keys."""
_NAME_MAX: Final = 256
_SCOPE: Final = "openid email profile"
_OFFLINE: Final = "offline_access"
_GROUPS_MAX: Final = 1000
_ENDS_MAX: Final = 8
"""Maximum sign-ins that are being finished at the provider at once."""
_ENDS_OF_ADDRESS_MAX: Final = 4
"""How many of one address, those that wait included: the others' do not stand behind hers."""


class OpenIdError(Exception):
    """The provider did not identify a person; the text says why, without secrets."""


class PersonRefusedError(Exception):
    """The provider does not know a person's refresh token any more: they were suspended there."""


class Known(Struct, frozen=True):
    """A person whom the provider has identified.

    Attributes:
        person: who that is.
        refresh_token: asks about them again; empty if the provider gives none.
    """

    person: Person
    refresh_token: str = ""

    def __repr__(self) -> str:
        return f"Known({self.person!r})"


class Flow(Struct, frozen=True):
    """One sign-in that has begun.

    Attributes:
        state: comes back from the provider with the browser; shows that this browser began.
        nonce: comes back in the token; shows that the token is for this sign-in.
        verifier: of PKCE; shows the provider that the gateway that redeems the code asked for it.
        return_to: the page to show after the sign-in.
    """

    state: str
    nonce: str
    verifier: str
    return_to: str

    def __repr__(self) -> str:
        return "Flow()"

    @classmethod
    def new(cls, return_to: str) -> Flow:
        """Begin a sign-in."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, return_to)

    def text(self) -> str:
        """Return the flow as the value of a cookie."""
        shown = base64.urlsafe_b64encode(self.return_to.encode()).decode()
        return f"{self.state}.{self.nonce}.{self.verifier}.{shown}"

    @classmethod
    def read(cls, text: str) -> Flow | None:
        """Return the flow in a cookie; ``None`` if it does not hold one."""
        parts = text.split(".")
        if len(parts) != 4 or not all(parts):
            return None
        try:
            return_to = base64.urlsafe_b64decode(parts[3].encode("ascii")).decode()
        except ValueError:
            return None
        return cls(parts[0], parts[1], parts[2], return_to)


class OpenIdProvider:
    """One provider that people sign in at.

    Args:
        issuer: its address, under which it describes itself.
        client_id: of this gateway, at the provider.
        client_secret: the same; ``None``: a public client, with PKCE alone.
        claim: the claim of the token that has the operator's name.
        groups_claim: the claim that has the names of a person's groups.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str | None,
        claim: str,
        groups_claim: str = "groups",
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._claim = claim
        self._groups_claim = groups_claim
        # When the provider was asked (monotonic seconds), how it describes itself, and its keys.
        # Replaced as a whole, under the lock below; set to ``None`` to have it asked again.
        self._known: tuple[float, dict[str, Any], KeySet] | None = None
        # Held while the provider is asked, so that sign-ins at the same time share one answer; and
        # until when a failure is the answer (monotonic seconds).
        self._asking = asyncio.Lock()
        self._failed_until_s = 0.0
        # Made once, off the loop: reading the certificates of authorities takes tens of
        # milliseconds. Set under the lock, before any use.
        self._tls: ssl.SSLContext | None = None
        # Anyone can send codes, and only the provider can refuse them: this bounds how many of its
        # answers are awaited at once.
        self._ends = asyncio.Semaphore(_ENDS_MAX)
        self._ends_of: collections.Counter[str] = collections.Counter()
        # Their own bound: strangers' codes do not delay people who have signed in.
        self._refreshes = asyncio.Semaphore(_ENDS_MAX)

    async def begin(self, flow: Flow, callback: str, *, stays: bool = False) -> str:
        """Return the address to send the browser to.

        Args:
            flow: the sign-in.
            callback: the address that the provider sends the browser back to.
            stays: whether the person is asked about again later, by a refresh token.

        Raises:
            OpenIdError: the provider cannot be reached, or describes itself wrongly.
        """
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        described, _ = await self._provider()
        # Only where the provider knows that scope: some refuse others, and give the token anyway.
        offline = stays and _OFFLINE in (described.get("scopes_supported") or ())
        address = prepare_grant_uri(
            described["authorization_endpoint"],
            self._client_id,
            "code",
            redirect_uri=callback,
            scope=f"{_SCOPE} {_OFFLINE}" if offline else _SCOPE,
            state=flow.state,
            nonce=flow.nonce,
            code_challenge=create_s256_code_challenge(flow.verifier),
            code_challenge_method="S256",
        )
        return str(address)

    async def end(self, flow: Flow, code: str, callback: str, address: str) -> Known:
        """Return the person who has signed in.

        Args:
            flow: the sign-in.
            code: what the provider has given the browser.
            callback: as for :meth:`begin`.
            address: of the browser.

        Raises:
            OpenIdError: the provider says otherwise, or cannot be reached.
        """
        network = network_of(address)
        if self._ends_of[network] >= _ENDS_OF_ADDRESS_MAX:
            raise OpenIdError("too many sign-ins from this address at once; try again")
        self._ends_of[network] += 1
        try:
            return await self._end(flow, code, callback)
        finally:
            self._ends_of -= collections.Counter([network])  # forgets who has none any more

    async def _end(self, flow: Flow, code: str, callback: str) -> Known:
        from authlib.common.errors import AuthlibBaseError

        described, keys = await self._provider()
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._ends, self._client(callback) as client:
                token = await client.fetch_token(
                    described["token_endpoint"], code=code, code_verifier=flow.verifier
                )
        except (AuthlibBaseError, *_http_errors(), ValueError, TimeoutError) as exc:
            logger.warning("the OpenID provider gave no token: %s", type(exc).__name__)
            raise OpenIdError("the provider refused to finish the sign-in; try again") from None
        given = token.get("id_token")
        if not isinstance(given, str):
            raise OpenIdError("the provider gave no ID token")
        # A provider may change its keys before the cached ones are an hour old: they are read once
        # more, at most once a minute, since a token with any signature gets here.
        try:
            claims = self._claims(given, keys, flow.nonce)
        except OpenIdError:
            if not self._may_ask_again():
                raise
            self._known = None
            described, keys = await self._provider()
            claims = self._claims(given, keys, flow.nonce)
        return Known(self._person(claims), _refresh_token(token))

    async def refresh(self, known: Known) -> Known:
        """Return what the provider says now of a person whom it has identified before.

        Groups are those of a new ID token, or else of the provider's description of the person;
        where it names none, there are none any more.

        Raises:
            PersonRefusedError: it does not know them any more.
            OpenIdError: it cannot be asked.
        """
        from authlib.common.errors import AuthlibBaseError

        described, keys = await self._provider()
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S), self._refreshes, self._client(None) as client,
            ):  # fmt: skip
                token = await client.refresh_token(
                    described["token_endpoint"], refresh_token=known.refresh_token
                )
                if isinstance(token.get("id_token"), str):
                    claims = self._claims(token["id_token"], keys, None)
                elif "userinfo_endpoint" in described:
                    found = await client.get(described["userinfo_endpoint"])
                    claims = dict(found.raise_for_status().json())
                else:
                    claims = {"sub": known.person.subject}
        except (AuthlibBaseError, *_http_errors(), ValueError, TypeError, TimeoutError) as exc:
            if getattr(exc, "error", "") == "invalid_grant":
                raise PersonRefusedError from None
            logger.warning("the OpenID provider did not refresh: %s", type(exc).__name__)
            raise self._silent() from None
        if claims.get("sub") != known.person.subject:
            raise OpenIdError("the provider speaks of somebody else")
        person = msgspec.structs.replace(known.person, groups=self._groups(claims))
        return Known(person, _refresh_token(token) or known.refresh_token)

    def _groups(self, claims: dict[str, Any]) -> tuple[str, ...]:
        named = claims.get(self._groups_claim)
        groups = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        return tuple(
            each for each in groups[:_GROUPS_MAX]
            if isinstance(each, str) and each.isprintable() and 1 <= len(each) <= _NAME_MAX
        )  # fmt: skip

    def _may_ask_again(self) -> bool:
        return self._known is not None and time.monotonic() - self._known[0] > _LEEWAY_S

    def _claims(self, given: str, keys: KeySet, nonce: str | None) -> dict[str, Any]:
        """Return the claims of an ID token that is for this sign-in; a refreshed one has no nonce.

        Raises:
            OpenIdError: it is not, or its signature is not the provider's.
        """
        from joserfc import jwt
        from joserfc.errors import JoseError

        registry = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._client_id},
            nonce={} if nonce is None else {"essential": True, "value": nonce},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            claims = dict(jwt.decode(given, keys, algorithms=_ALGORITHMS).claims)
            registry.validate(claims)
        except (JoseError, ValueError, TypeError, KeyError) as exc:
            logger.warning("an ID token was refused: %s", type(exc).__name__)
            raise OpenIdError("the provider's ID token is not for this sign-in") from None
        # Beyond what the registry checks, which takes a list that holds a value for that value.
        if claims["iss"] != self._issuer or nonce not in (None, claims.get("nonce")):
            raise OpenIdError("the provider's ID token is not for this sign-in")
        # And a token for several clients has to be issued to this one.
        audience = claims["aud"]
        if isinstance(audience, list) and len(audience) > 1 and "azp" not in claims:
            raise OpenIdError("the provider's ID token is for several, and does not say whose")
        if claims.get("azp", self._client_id) != self._client_id:
            raise OpenIdError("the provider's ID token is for another client")
        return claims

    def _person(self, claims: dict[str, Any]) -> Person:
        # The name becomes an operator's, and is shown in logs and pages.
        name = claims.get(self._claim)
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= _NAME_MAX:
            raise OpenIdError(f"the provider's ID token has no claim {self._claim}")
        # At many providers a person can enter any address; a verified one is theirs.
        if self._claim == "email" and claims.get("email_verified") is not True:
            raise OpenIdError("the provider has not verified this person's mail address")
        # A name may change hands, the subject never does.
        subject = claims["sub"]
        if not isinstance(subject, str) or not (
            subject.isprintable() and 1 <= len(subject) <= _NAME_MAX
        ):
            raise OpenIdError("the provider's ID token does not say whose it is")
        groups = self._groups(claims)
        return Person(issuer=self._issuer, subject=subject, name=name, groups=groups)

    def _client(self, callback: str | None) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        is_public = self._client_secret is None
        return AsyncOAuth2Client(
            self._client_id,
            self._client_secret,
            token_endpoint_auth_method="none" if is_public else "client_secret_basic",
            scope=None if callback is None else _SCOPE,  # a refresh keeps what was given
            redirect_uri=callback,
            timeout=_TIMEOUT_S,
            verify=self._tls,
        )

    async def _provider(self) -> tuple[dict[str, Any], KeySet]:
        """Return how the provider describes itself, and its keys; read once an hour."""
        async with self._asking:
            now_s = time.monotonic()
            if self._known is None or now_s - self._known[0] > _KEEP_S:
                if now_s < self._failed_until_s:
                    raise self._silent()
                try:
                    self._known = (now_s, *await self._ask())
                except OpenIdError:
                    self._failed_until_s = time.monotonic() + _RETRY_S
                    raise
            return self._known[1], self._known[2]

    def _silent(self) -> OpenIdError:
        host = urlsplit(self._issuer).hostname
        return OpenIdError(f"the provider at {host} does not answer as one")

    async def _ask(self) -> tuple[dict[str, Any], KeySet]:
        import httpx
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            if self._tls is None:
                self._tls = await asyncio.to_thread(httpx.create_ssl_context)
            async with (
                asyncio.timeout(_TIMEOUT_S),
                httpx.AsyncClient(timeout=_TIMEOUT_S, verify=self._tls) as http,
            ):
                address = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
                described = (await http.get(address)).raise_for_status().json()
                if described["issuer"] != self._issuer:
                    raise OpenIdError(f"the provider calls itself otherwise than {self._issuer}")
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    require_secure(described[name])
                found = (await http.get(described["jwks_uri"])).raise_for_status().json()
            return described, KeySet.import_key_set(found)
        except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError, TimeoutError) as exc:
            logger.warning("the OpenID provider cannot be asked: %s", type(exc).__name__)
            raise self._silent() from None


def _http_errors() -> tuple[type[Exception], ...]:
    """Return the errors of authlib's client, which is made of httpx2 where that is installed."""
    found = filter(importlib.util.find_spec, ("httpx", "httpx2"))
    return tuple(importlib.import_module(name).HTTPError for name in found)


def _refresh_token(token: Any) -> str:
    found = token.get("refresh_token")
    return found if isinstance(found, str) else ""


def require_secure(address: object) -> None:
    """Refuse an address to which a secret would go in clear text over a network.

    Raises:
        ValueError: it is one, or no address.
    """
    if not isinstance(address, str) or not urlsplit(address).hostname:
        raise ValueError("an address such as https://login.example.com")
    if not address.startswith(("https://", "http://")):
        raise ValueError("an address such as https://login.example.com")
    flaw = flaw_in_address(address, ())
    if flaw is not None:
        raise ValueError("an address such as https://login.example.com; http is for this machine")
