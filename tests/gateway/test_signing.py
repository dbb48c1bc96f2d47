"""Signed requests: each part counts, a nonce counts once, control frames are bound."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from guard.core import signing
from guard.gateway.embedded import run_gateway

SECRET = "a shared secret, long enough"
_serial = iter(range(1_000_000))


def signed(
    base_url: str, key: str, verb: str, path: str, content: bytes, **changes: Any
) -> dict[str, str]:
    nonce = changes.pop("nonce", f"nonce-{next(_serial):08}")
    created = changes.pop("created", int(time.time()))
    fields = {
        "method": verb,
        "target_uri": base_url + path,
        "body": content,
        "api_key": key,
        "secret": SECRET,
        **changes,
    }
    headers = signing.sign(**fields, parameters=signing.SignatureParameters(created, nonce, "key"))
    return {**headers, "X-API-Key": key, "X-Guard-Protocol": "3",
            "Content-Type": "application/json"}  # fmt: skip


BODY = json.dumps({"call_id": "c", "kind": "call", "function": "f"}).encode()


def gate(base_url: str, headers: dict[str, str], body: bytes = BODY) -> httpx.Response:
    return httpx.post(f"{base_url}/gate", content=body, headers=headers, trust_env=False)


def test_each_mutation_is_refused(make_tenant: Any) -> None:
    tenant = make_tenant(hmac_secret=SECRET)
    base = tenant.gateway.base_url
    assert gate(base, signed(base, tenant.api_key, "POST", "/gate", BODY)).status_code == 200
    for change in (
        {"method": "PUT"},
        {"target_uri": f"{base}/gate?x=1"},
        {"target_uri": f"{base}/api/v1/events"},
        {"body": BODY + b" "},
        {"api_key": "gdk_other"},
        {"secret": "another secret, long enough"},
    ):
        headers = signed(base, tenant.api_key, "POST", "/gate", BODY, **change)
        headers["X-API-Key"] = tenant.api_key
        reply = gate(base, headers)
        assert (reply.status_code, reply.json()["error_code"]) == (401, "GD-A001"), change
    unsigned = tenant.gate()
    assert (unsigned.status_code, unsigned.json()["error_code"]) == (401, "GD-A001")


def test_a_rotated_key_has_a_secret_of_its_own(make_tenant: Any) -> None:
    tenant = make_tenant(hmac_secret=SECRET)
    base = tenant.gateway.base_url
    (key,) = tenant.admin.keys()
    made = tenant.admin.rotate_key(key["key_id"], overlap_ms=3_600_000)
    assert made["hmac_secret"] not in (None, SECRET)

    def status(api_key: str, secret: str) -> int:
        return gate(base, signed(base, api_key, "POST", "/gate", BODY, secret=secret)).status_code

    assert status(made["api_key"], made["hmac_secret"]) == 200
    assert status(made["api_key"], SECRET) == 401
    assert status(tenant.api_key, SECRET) == 200, "the old pair is good during the overlap"
    assert status(tenant.api_key, made["hmac_secret"]) == 401
    again = tenant.admin.rotate_key(key["key_id"])
    assert status(tenant.api_key, SECRET) == status(made["api_key"], made["hmac_secret"]) == 401
    assert status(again["api_key"], again["hmac_secret"]) == 200


@pytest.mark.parametrize("skew_s", [-600, 600])
def test_skewed_request_is_told_the_time(make_tenant: Any, skew_s: int) -> None:
    tenant = make_tenant(hmac_secret=SECRET)
    base = tenant.gateway.base_url
    created = int(time.time()) + skew_s
    reply = gate(base, signed(base, tenant.api_key, "POST", "/gate", BODY, created=created))
    assert reply.status_code == 401
    assert abs(reply.json()["server_time_ms"] - time.time() * 1000) < 60_000


def test_replay_is_refused_also_after_a_restart(tmp_path: Any) -> None:
    public = "http://gateway.example"  # signed at both ports
    with run_gateway(tmp_path / "g.sqlite3", public_url=public) as gateway:
        api_key = gateway.admin.create_key("signed", hmac_secret=SECRET)
        headers = signed(public, api_key, "POST", "/gate", BODY)
        assert gate(gateway.base_url, headers).status_code == 200
        assert gate(gateway.base_url, headers).status_code == 401
    with run_gateway(tmp_path / "g.sqlite3", public_url=public) as gateway:
        reply = gate(gateway.base_url, headers)
        assert (reply.status_code, reply.json()["detail"]) == (401, "the nonce was used before")


def test_signed_events_of_a_gzip_body(make_tenant: Any) -> None:
    import gzip

    tenant = make_tenant(hmac_secret=SECRET)
    base = tenant.gateway.base_url
    body = gzip.compress(json.dumps({"batch_id": "b", "sent_at_ms": 1, "events": []}).encode())
    headers = signed(base, tenant.api_key, "POST", "/api/v1/events", body)
    reply = httpx.post(
        f"{base}/api/v1/events", content=body, headers={**headers, "Content-Encoding": "gzip"}
    )
    assert reply.status_code == 202


def test_control_frames_and_polls_are_signed(make_tenant: Any) -> None:
    tenant = make_tenant(hmac_secret=SECRET)
    tenant.admin.kill("w")
    base = tenant.gateway.base_url
    ws = base.replace("http", "ws")
    path = "/api/v1/control/ws?after=0"
    headers = signed(ws, tenant.api_key, "GET", path, b"", nonce="nonce-of-the-socket")
    headers.pop("Content-Type")
    with connect(ws + path, additional_headers=headers) as channel:
        frames = [json.loads(channel.recv(timeout=60)) for _ in range(2)]
    for frame in frames:
        payload = frame["payload"].encode()
        assert signing.verify_frame(SECRET, "nonce-of-the-socket", payload, frame["signature"])
        assert not signing.verify_frame(SECRET, "another", payload, frame["signature"])
    assert json.loads(frames[1]["payload"])["type"] == "kill"
    poll = "/api/v1/control?after=0"
    headers = signed(base, tenant.api_key, "GET", poll, b"", nonce="nonce-of-the-poll")
    reply = httpx.get(base + poll, headers=headers)
    assert signing.verify_frame(
        SECRET, "nonce-of-the-poll", reply.content, reply.headers["x-guard-signature"]
    )
