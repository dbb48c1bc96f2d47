"""Signatures: RFC 9421 and RFC 9530 against ``http-message-signatures`` as oracle, both ways."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import httpx
import pytest
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    InvalidSignature,
    MappingKeyResolver,
)
from http_message_signatures.algorithms import HMAC_SHA256
from hypothesis import given
from hypothesis import strategies as st

from guard.core.signing import (
    COVERED,
    SignatureError,
    SignatureParameters,
    content_digest,
    sign,
    sign_asks,
    sign_frame,
    verify,
    verify_asks,
    verify_frame,
)

SECRET = "correct horse battery staple"
KEY_ID = "gk_live"
NOW_S = int(dt.datetime.now(dt.UTC).timestamp())
NONCE = "6f0c1d2b9a7e4f5c"

methods = st.sampled_from(["GET", "POST", "PUT", "DELETE"])
urls = st.sampled_from(
    [
        "https://guard.example.com/gate",
        "http://127.0.0.1:8787/api/v1/control?after=12&wait_ms=30000",
        "https://guard.example.com/api/v1/events?q=a%20b&x=%2F",
        "http://[::1]:9999/gate/release",
    ]
)
bodies = st.binary(max_size=300)
keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
secrets = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable())
nonces = st.from_regex(r"[A-Za-z0-9_-]{8,64}", fullmatch=True)


def resolver(secret: str) -> MappingKeyResolver:
    shared = {KEY_ID: secret.encode()}
    return MappingKeyResolver(public_keys=shared, private_keys=shared)


def signed_by_us(
    method: str, url: str, body: bytes, api_key: str, secret: str, nonce: str = NONCE
) -> dict[str, str]:
    return sign(
        method=method,
        target_uri=url,
        body=body,
        api_key=api_key,
        secret=secret,
        parameters=SignatureParameters(NOW_S, nonce, KEY_ID),
    )


@given(methods, urls, bodies, keys, secrets, nonces)
def test_the_oracle_accepts_what_we_sign(
    method: str, url: str, body: bytes, api_key: str, secret: str, nonce: str
) -> None:
    headers = signed_by_us(method, url, body, api_key, secret, nonce)
    request = httpx.Request(method, url, headers={"X-API-Key": api_key} | headers, content=body)
    verifier = HTTPMessageVerifier(signature_algorithm=HMAC_SHA256, key_resolver=resolver(secret))
    [result] = verifier.verify(request, require_components=COVERED, body=body)
    assert result.label == "guard"
    assert result.parameters["nonce"] == nonce
    assert result.parameters["keyid"] == KEY_ID
    assert result.parameters["created"] == NOW_S


class InOurOrder(HTTPMessageSigner):
    """The oracle with the parameters in the order of this protocol; RFC 9421 leaves it free."""

    def _build_signature_base(
        self, message: Any, *, signature_params: dict[str, Any], **options: Any
    ) -> tuple[Any, ...]:
        ordered = {name: signature_params[name] for name in ("created", "nonce", "keyid", "alg")}
        assert ordered == signature_params
        return super()._build_signature_base(message, signature_params=ordered, **options)


def signed_by_the_oracle(
    method: str, url: str, body: bytes, api_key: str, secret: str, nonce: str
) -> httpx.Headers:
    request = httpx.Request(method, url, headers={"X-API-Key": api_key}, content=body)
    InOurOrder(signature_algorithm=HMAC_SHA256, key_resolver=resolver(secret)).sign(
        request,
        key_id=KEY_ID,
        created=dt.datetime.fromtimestamp(NOW_S, dt.UTC),
        nonce=nonce,
        label="guard",
        covered_component_ids=COVERED,
        body=body,
    )
    return request.headers


@given(methods, urls, bodies, keys, secrets, nonces)
def test_we_accept_what_the_oracle_signs(
    method: str, url: str, body: bytes, api_key: str, secret: str, nonce: str
) -> None:
    headers = signed_by_the_oracle(method, url, body, api_key, secret, nonce)
    parameters = verify(
        method=method,
        target_uri=url,
        body=body,
        api_key=api_key,
        secret=secret,
        digest=headers["Content-Digest"],
        signature_input=headers["Signature-Input"],
        signature=headers["Signature"],
        now_s=NOW_S,
    )
    assert parameters == SignatureParameters(NOW_S, nonce, KEY_ID)


@given(st.text(st.sampled_from('ab "\\;=()~'), min_size=1, max_size=20))
def test_any_visible_key_id_survives_the_header(key_id: str) -> None:
    """The id is the key's beginning, and a key may hold what a quoted string has to escape."""
    url, parameters = "https://guard.example.com/gate", SignatureParameters(NOW_S, NONCE, key_id)
    request: dict[str, Any] = {"method": "POST", "target_uri": url, "body": b"x", "api_key": "key"}
    headers = sign(**request, secret=SECRET, parameters=parameters)
    verifier = HTTPMessageVerifier(
        signature_algorithm=HMAC_SHA256,
        key_resolver=MappingKeyResolver(public_keys={key_id: SECRET.encode()}, private_keys={}),
    )
    sent = httpx.Request("POST", url, headers={"X-API-Key": "key"} | headers, content=b"x")
    [result] = verifier.verify(sent, require_components=COVERED, body=b"x")
    assert result.parameters["keyid"] == key_id
    verified = verify(
        **request,
        secret=SECRET,
        digest=headers["Content-Digest"],
        signature_input=headers["Signature-Input"],
        signature=headers["Signature"],
        now_s=NOW_S,
    )
    assert verified == parameters


def test_the_oracle_refuses_what_was_changed_after_we_signed() -> None:
    """The oracle can say no: the agreement above means something."""
    headers = signed_by_us("POST", "https://guard.example.com/gate", b"a", "key", SECRET)
    verifier = HTTPMessageVerifier(signature_algorithm=HMAC_SHA256, key_resolver=resolver(SECRET))
    request = httpx.Request(
        "POST", "https://guard.example.com/gate", headers={"X-API-Key": "yek"} | headers
    )
    with pytest.raises(InvalidSignature):
        verifier.verify(request, require_components=COVERED)


def test_the_digest_of_rfc_9530() -> None:
    """RFC 9530, appendix B.2: the digest of ``{"hello": "world"}`` with a line feed."""
    assert (
        content_digest(b'{"hello": "world"}\n')
        == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
    )


ARABIC_DIGITS = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
GOOD: dict[str, Any] = {
    "method": "POST",
    "target_uri": "https://guard.example.com/gate?x=1",
    "body": b'{"call_id":"c1"}',
    "api_key": "gk_live_0123456789",
    "secret": SECRET,
    "now_s": NOW_S,
}


def good() -> dict[str, Any]:
    headers = signed_by_us(
        GOOD["method"], GOOD["target_uri"], GOOD["body"], GOOD["api_key"], SECRET
    )
    return GOOD | {
        "digest": headers["Content-Digest"],
        "signature_input": headers["Signature-Input"],
        "signature": headers["Signature"],
    }


def test_a_good_request_is_accepted() -> None:
    assert verify(**good()) == SignatureParameters(NOW_S, NONCE, KEY_ID)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "PUT"),
        ("method", "post"),
        ("method", "GET"),
        ("target_uri", "https://guard.example.com/gate?x=2"),
        ("target_uri", "https://guard.example.com/gate"),
        ("target_uri", "http://guard.example.com/gate?x=1"),
        ("target_uri", "https://evil.example.com/gate?x=1"),
        ("target_uri", "https://guard.example.com:443/gate?x=1"),
        ("target_uri", "https://guard.example.com/Gate?x=1"),
        ("target_uri", "https://guard.example.com//gate?x=1"),
        ("body", b'{"call_id":"c2"}'),
        ("body", b'{"call_id":"c1"} '),
        ("body", b""),
        ("digest", content_digest(b'{"call_id":"c2"}')),
        ("digest", ""),
        ("digest", "sha-512=:AAAA:"),
        ("digest", "sha-256=::"),
        ("api_key", "gk_live_0123456780"),
        ("api_key", "GK_LIVE_0123456789"),
        ("api_key", ""),
        ("secret", SECRET + " "),
        ("secret", ""),
        ("signature", "guard=:" + "A" * 43 + "=:"),
        ("signature", "guard=::"),
        ("signature", ""),
        ("signature", "other=:" + "A" * 43 + "=:"),
        ("signature_input", ""),
        ("signature_input", "guard=()"),
    ],
)
def test_each_signed_field_mutated_is_refused(name: str, value: object) -> None:
    assert good()[name] != value
    with pytest.raises(SignatureError):
        verify(**good() | {name: value})


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"created=(\d+)", lambda m: f"created={int(m[1]) + 1}"),
        (r"created=(\d+)", lambda m: f"created=0{m[1]}"),
        (r"created=(\d+)", lambda m: "created=" + m[1].translate(ARABIC_DIGITS)),
        (r"created=\d+;", lambda m: ""),
        (r'nonce="\w+"', lambda m: 'nonce="aaaaaaaaaaaaaaaa"'),
        (r'nonce="\w+"', lambda m: 'nonce=""'),
        (r';nonce="\w+"', lambda m: ""),
        (r'keyid="\w+"', lambda m: 'keyid="somebody"'),
        (r'keyid="\w+"', lambda m: 'keyid="a\nb"'),
        (r"hmac-sha256", lambda m: "none"),
        (r"hmac-sha256", lambda m: "hmac-sha1"),
        (r';alg="hmac-sha256"', lambda m: ""),
        (r' "x-api-key"', lambda m: ""),
        (r'"content-digest" ', lambda m: ""),
        (r'"@method" "@target-uri"', lambda m: '"@target-uri" "@method"'),
        (r"\(.*\)", lambda m: "()"),
        (r"^guard=", lambda m: "guard2="),
        (r"$", lambda m: ";tag=\"x\""),
        (r"$", lambda m: ", guard=()"),
    ],
)  # fmt: skip
def test_each_parameter_of_the_signature_mutated_is_refused(pattern: str, replacement: Any) -> None:
    request = good()
    mutated = re.sub(pattern, replacement, request["signature_input"], count=1)
    assert mutated != request["signature_input"]
    with pytest.raises(SignatureError):
        verify(**request | {"signature_input": mutated})


@given(st.integers(0, 42), st.integers(1, 63))
def test_each_character_of_the_signature_counts(at: int, shift: int) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    request = good()
    value = request["signature"][len("guard=:") : -2]
    other = alphabet[(alphabet.index(value[at]) + shift) % 64]
    with pytest.raises(SignatureError):
        verify(**request | {"signature": f"guard=:{value[:at]}{other}{value[at + 1 :]}=:"})


@pytest.mark.parametrize(
    ("skew_s", "accepted"), [(0, 1), (300, 1), (-300, 1), (301, 0), (-301, 0), (600, 0)]
)
def test_three_hundred_seconds_of_skew(skew_s: int, accepted: int) -> None:
    request = good() | {"now_s": NOW_S + skew_s}
    if accepted:
        verify(**request)
    else:
        with pytest.raises(SignatureError, match="clock"):
            verify(**request)


def test_a_forger_learns_nothing_of_the_clock() -> None:
    """Only who holds the secret is told that the time was wrong."""
    with pytest.raises(SignatureError, match="does not match"):
        verify(**good() | {"now_s": NOW_S + 9999, "secret": "guess"})


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_hostile_headers_raise_only_signature_errors(digest: str, given: str, value: str) -> None:
    with pytest.raises(SignatureError) as caught:
        verify(**good() | {"digest": digest, "signature_input": given, "signature": value})
    assert SECRET not in str(caught.value)


class TestFrames:
    """Control messages are signed for one connection."""

    @given(secrets, nonces, bodies)
    def test_a_signed_frame_is_accepted(self, secret: str, nonce: str, payload: bytes) -> None:
        assert verify_frame(secret, nonce, payload, sign_frame(secret, nonce, payload))

    @pytest.mark.parametrize(
        ("secret", "nonce", "payload"),
        [
            (SECRET + "x", NONCE, b"kill"),
            (SECRET, "another-connection", b"kill"),
            (SECRET, "", b"kill"),
            (SECRET, NONCE, b"revive"),
            (SECRET, NONCE + "\nkill", b""),
            (SECRET, NONCE + "\n", b"kill"),
        ],
    )
    def test_another_secret_connection_or_message_is_refused(
        self, secret: str, nonce: str, payload: bytes
    ) -> None:
        assert not verify_frame(secret, nonce, payload, sign_frame(SECRET, NONCE, b"kill"))

    @pytest.mark.parametrize("signature", ["", "=", "ключ", "\ud800", "A" * 10_000])
    def test_a_missing_or_hostile_signature_is_refused(self, signature: str) -> None:
        assert not verify_frame(SECRET, NONCE, b"kill", signature)

    def test_a_request_signature_is_no_frame_signature(self) -> None:
        request = good()
        value = request["signature"][len("guard=:") : -1]
        assert not verify_frame(SECRET, NONCE, request["body"], value)


class TestRequestFrames:
    """A client's frames of requests: bound to the connection and to their place in it."""

    FRAME = b'{"type":"asks","asks":[]}'

    def test_round_trip(self) -> None:
        assert verify_asks(SECRET, NONCE, 3, self.FRAME, sign_asks(SECRET, NONCE, 3, self.FRAME))

    @pytest.mark.parametrize(
        ("secret", "nonce", "number", "payload"),
        [
            ("other", NONCE, 3, FRAME),
            (SECRET, "another-nonce", 3, FRAME),
            (SECRET, NONCE, 4, FRAME),
            (SECRET, NONCE, 3, FRAME + b" "),
        ],
    )
    def test_everything_is_covered(
        self, secret: str, nonce: str, number: int, payload: bytes
    ) -> None:
        signature = sign_asks(SECRET, NONCE, 3, self.FRAME)
        assert not verify_asks(secret, nonce, number, payload, signature)

    def test_a_frame_of_the_gateway_cannot_be_sent_back(self) -> None:
        payload = b"x"
        assert sign_frame(SECRET, f"{NONCE}\n1", payload) != sign_asks(SECRET, NONCE, 1, payload)
