"""Spec part 5: authentication; HMAC signing (protocol, every request)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
import websockets.sync.client

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import (
    GuardAuthenticationError,
    GuardAuthError,
    WorkflowKilledInterrupt,
)
from guard.core import signing
from guard.gateway.embedded import run_gateway
from tests.support.waiting import WAIT_S, until


@guard.protect
def step() -> str:
    return "ran"


@pytest.fixture
def signed(tenant: Any) -> dict[str, Any]:
    """A key whose requests have to be signed, with its secret."""
    made = tenant.admin.create_key_full("signed", signed=True)
    return {"api_key": made["api_key"], "hmac_secret": made["hmac_secret"]}


class TestKey:
    def test_is_required(self) -> None:
        """Part 5.1: an API key is required."""
        with pytest.raises(GuardAuthenticationError) as refused:
            guard.init()
        assert refused.value.error_code == "GD-C001"

    def test_a_rejected_key_is_the_subclass_with_the_status(self, tenant: Any) -> None:
        """Part 5.3: a 401 (key rejected) maps to GD-A003 carrying status_code."""
        with pytest.raises(GuardAuthError) as refused:
            guard.init("gdk_unknown", tenant.url)
        assert refused.value.error_code == "GD-A003"
        assert refused.value.status_code == 401
        assert isinstance(refused.value, GuardAuthenticationError)

    def test_a_key_revoked_while_at_work(
        self, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 5.3: key rejected, at the gate."""
        made = tenant.admin.create_key_full("soon revoked")
        start(api_key=made["api_key"])
        assert step() == "ran"
        tenant.admin.revoke_key(made["key"]["key_id"])
        with pytest.raises(GuardAuthError):
            until(lambda: step() != "ran")  # a lease may cover calls until the socket is closed

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_bad_hmac_is_the_authentication_error(
        self, scripted: Any, scripted_runtime: GuardRuntime, status: int
    ) -> None:
        """Part 5.3: missing or invalid key, or a bad HMAC (HTTP 401 or 403)."""
        scripted.answer("/gate", status, {"error_code": "GD-A001"})
        with pytest.raises(GuardAuthenticationError) as refused:
            step()
        assert refused.value.error_code == "GD-A001"
        assert not isinstance(refused.value, GuardAuthError)
        assert not refused.value.retryable

    def test_the_key_is_nowhere_to_be_seen(
        self, tenant: Any, runtime: GuardRuntime, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Part 5 (security): never in a repr, a log, an error or an event."""
        guard.track_event("custom", x=1)
        shown = f"{runtime!r} {runtime.settings!r} {guard.status()!r}"
        guard.shutdown(WAIT_S)
        shown += str(tenant.admin.events()) + "".join(capfd.readouterr())
        assert tenant.key not in shown


class TestSigning:
    def test_the_secret_is_an_environment_setting(
        self, tenant: Any, signed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Part 5.4: an HMAC secret exists as an environment-level setting."""
        monkeypatch.setenv("GUARD_HMAC_SECRET", signed["hmac_secret"])
        guard.init(signed["api_key"], tenant.url)
        assert step() == "ran"

    def test_signs_every_request_and_every_channel(
        self,
        tenant: Any,
        signed: dict[str, Any],
        start: Callable[..., GuardRuntime],
    ) -> None:
        """Part 5.4: gate, events and both control channels work with a signed key."""
        for mode in ("websocket", "http"):
            runtime = start(**signed, transport_mode=mode)
            channel = "websocket" if mode == "websocket" else "poller"
            until(lambda channel=channel: guard.status().control_channel == channel)
            with guard.workflow(mode):
                assert step() == "ran"
                guard.track_llm(1, 1)
                runtime.flush()
                assert len(tenant.llm_events(mode)) == 1
                tenant.admin.kill(mode)
                until(lambda: guard.track_llm(0)["decision"] == "kill")
                with pytest.raises(WorkflowKilledInterrupt):
                    step()
            guard.shutdown(flush=False)

    def test_the_headers(self, scripted: Any, start: Callable[..., GuardRuntime]) -> None:
        """Protocol: RFC 9530 Content-Digest and RFC 9421 Signature-Input and Signature."""
        start(api_url=scripted.url, transport_mode="http", hmac_secret="s3cret")
        step()
        nonces = set()
        so_far = list(scripted.asked)  # it is polled meanwhile
        for asked in so_far:
            parameters = signing.verify(
                method=asked.method,
                target_uri=scripted.url + asked.target,
                body=asked.body,
                api_key=asked.headers["x-api-key"],
                secret="s3cret",
                digest=asked.headers["content-digest"],
                signature_input=asked.headers["signature-input"],
                signature=asked.headers["signature"],
                now_s=int(time.time()),
            )
            nonces.add(parameters.nonce)
            assert b"s3cret" not in asked.body
            assert "s3cret" not in str(asked.headers)
        assert len(nonces) == len(so_far)

    def test_an_unsigned_request_with_a_signed_key_is_refused(
        self, tenant: Any, signed: dict[str, Any]
    ) -> None:
        """Part 5.3: bad HMAC, when there is none."""
        with pytest.raises(GuardAuthenticationError) as refused:
            guard.init(signed["api_key"], tenant.url)
        assert refused.value.error_code == "GD-A001"

    def test_a_wrong_secret_is_refused(self, tenant: Any, signed: dict[str, Any]) -> None:
        """Part 5.3: bad HMAC."""
        with pytest.raises(GuardAuthenticationError) as refused:
            GuardRuntime(signed["api_key"], tenant.url, hmac_secret="another").open()
        assert refused.value.error_code == "GD-A001"
        assert "another" not in str(refused.value)

    @pytest.mark.parametrize("skew_s", [-3600, 3600])
    def test_a_skewed_clock_is_resynchronised_once(
        self, start: Callable[..., GuardRuntime], skew_s: int
    ) -> None:
        """Protocol: answers a skewed request 401 with its own time; the client resynchronises."""
        with run_gateway(clock_ms=lambda: int((time.time() + skew_s) * 1000)) as gateway:
            made = gateway.admin.create_key_full("signed", signed=True)
            start(
                api_key=made["api_key"],
                api_url=gateway.base_url,
                hmac_secret=made["hmac_secret"],
            )
            assert step() == "ran"
            guard.shutdown(flush=False)

    def test_a_replayed_request_is_refused(self, tenant: Any, signed: dict[str, Any]) -> None:
        """Protocol: refuses a nonce seen before."""
        url = f"{tenant.url}/api/v1/capabilities"
        headers = _signed_headers(signed, "GET", url, "a-nonce-used-twice")
        assert httpx.get(url, headers=headers).status_code == 200
        again = httpx.get(url, headers=headers)
        assert again.status_code == 401
        assert again.json()["error_code"] == "GD-A001"

    def test_a_stale_signature_is_refused_with_the_gateways_time(self) -> None:
        """Protocol: 300 s of skew."""
        now_s = int(time.time())
        with run_gateway(clock_ms=lambda: now_s * 1000) as gateway:  # it stands still
            signed = gateway.admin.create_key_full("signed", signed=True)
            url = f"{gateway.base_url}/api/v1/capabilities"

            def asked(offset_s: int) -> httpx.Response:
                nonce = f"nonce-at-{offset_s}"
                headers = _signed_headers(signed, "GET", url, nonce, now_s + offset_s)
                return httpx.get(url, headers=headers)

            for offset_s in (-300, 0, 300):
                assert asked(offset_s).status_code == 200
            for offset_s in (-301, 301):
                reply = asked(offset_s)
                assert reply.status_code == 401
                assert reply.json()["server_time_ms"] == now_s * 1000

    def test_control_frames_are_signed_for_their_connection(
        self, tenant: Any, signed: dict[str, Any]
    ) -> None:
        """Protocol: with a secret the control channel is signed as well."""
        url = tenant.url.replace("http", "ws", 1) + "/api/v1/control/ws?after=0"
        headers = _signed_headers(signed, "GET", url, "nonce-of-the-socket")
        with websockets.sync.client.connect(
            url,
            additional_headers=headers,
            subprotocols=[websockets.Subprotocol("guard.v3")],
            proxy=None,
            open_timeout=WAIT_S,
        ) as socket:
            frame = msgspec.json.decode(socket.recv(timeout=120))
        assert signing.verify_frame(
            signed["hmac_secret"],
            "nonce-of-the-socket",
            frame["payload"].encode(),
            frame["signature"],
        )

    def test_an_unsigned_poll_answer_is_refused(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Security: an unsigned control message with a secret configured is not obeyed."""
        kill = {"seq": 1, "type": "kill", "workflow_id": "*", "reason": "forged"}
        scripted.answer("/api/v1/control", body={"messages": [kill], "seq": 1})
        start(api_url=scripted.url, transport_mode="http", hmac_secret="s3cret")
        until(lambda: len(scripted.calls("/api/v1/control")) >= 2)
        assert step() == "ran"
        assert guard.status().control_channel == "none"

    def test_an_unsigned_frame_is_refused(self, start: Callable[..., GuardRuntime]) -> None:
        """Security: so is an unsigned, and a wrongly signed, WebSocket frame."""
        import threading

        import websockets.sync.server

        kill = '{"seq":1,"type":"kill","workflow_id":"*","reason":"forged"}'
        forged = msgspec.json.encode({"payload": kill, "signature": "AAAA"}).decode()
        served: list[str] = []

        def serve(connection: websockets.sync.server.ServerConnection) -> None:
            frame = (kill, forged)[len(served) % 2]
            served.append(frame)
            connection.send(frame)
            for _ in connection:
                pass

        server = websockets.sync.server.serve(
            serve, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol("guard.v3")]
        )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            start(
                api_url=f"http://127.0.0.1:{server.socket.getsockname()[1]}",
                transport_mode="websocket",
                hmac_secret="s3cret",
                timeout_ms=200,
            )
            until(lambda: len(served) >= 2)
            with guard.workflow("w"):
                assert guard.track_llm(0)["decision"] == "allow"
            guard.shutdown(flush=False)
        finally:
            server.shutdown()
            thread.join(120)


def _signed_headers(
    key: dict[str, Any], method: str, url: str, nonce: str, created_s: int | None = None
) -> dict[str, str]:
    signature = signing.sign(
        method=method,
        target_uri=url,
        body=b"",
        api_key=key["api_key"],
        secret=key["hmac_secret"],
        parameters=signing.SignatureParameters(
            int(time.time()) if created_s is None else created_s, nonce, "key"
        ),
    )
    return {"X-API-Key": key["api_key"], "X-Guard-Protocol": "3", **signature}
