"""The control socket when things go wrong: lost connections, forged frames, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from guard.core import signing, wire
from guard.gateway.admin import AdminClient
from guard.gateway.domain.commands import PostCommitEvent
from tests.gateway.test_signing import SECRET, signed
from tests.support.asker import WAIT_S, ask, asker, call, close_code, frame

_PATH = f"{wire.CONTROL_WS_PATH}?after=0"
_PRICED = {"model": "gpt-4o", "max_input_tokens": 0, "max_output_tokens": 100}  # 0.1 cents


# -- signatures ------------------------------------------------------------------------------------


def signed_socket(tenant: Any, nonce: str) -> connect:
    base = tenant.gateway.base_url.replace("http", "ws", 1)
    headers = signed(base, tenant.api_key, "GET", _PATH, b"", nonce=nonce)
    headers.pop("Content-Type")
    return connect(base + _PATH, additional_headers=headers, proxy=None)


def sealed(nonce: str, number: int, payload: str) -> str:
    signature = signing.sign_asks(SECRET, nonce, number, payload.encode())
    return json.dumps({"payload": payload, "signature": signature, "number": number})


@pytest.mark.asyncio
async def test_signed_requests_get_signed_answers(make_tenant: Any) -> None:
    tenant = make_tenant(hmac_secret=SECRET)
    nonce = "nonce-of-the-asker-1"
    async with signed_socket(tenant, nonce) as channel, asyncio.timeout(WAIT_S):
        await channel.send('{"type":"ack","seq":1}')
        for number in (1, 2, 3):
            payload = frame([ask(f"s{number}", call(number))])
            await channel.send(sealed(nonce, number, payload))
            while True:
                answer = json.loads(await channel.recv())
                text = answer["payload"].encode()
                assert signing.verify_frame(SECRET, nonce, text, answer["signature"])
                told = json.loads(text)
                if told["type"] == "answers":
                    break
            assert [(a["id"], a["status"]) for a in told["answers"]] == [(f"s{number}", 200)]


FORGED = frame([ask("forged", call("forged"))])
ATTACKS: dict[str, Callable[[str], list[str]]] = {
    "not signed": lambda nonce: [FORGED],
    "sent again": lambda nonce: [sealed(nonce, 1, FORGED), sealed(nonce, 1, FORGED)],
    "one left out": lambda nonce: [sealed(nonce, 2, FORGED)],
    "of another connection": lambda nonce: [sealed("nonce-of-another", 1, FORGED)],
    "changed": lambda nonce: [sealed(nonce, 1, FORGED).replace("forged", "forges")],
    "signed as the gateway does": lambda nonce: [
        json.dumps(
            {
                "payload": FORGED,
                "signature": signing.sign_frame(SECRET, nonce, FORGED.encode()),
                "number": 1,
            }
        )
    ],
}


@pytest.mark.asyncio
@pytest.mark.parametrize("attack", ATTACKS)
async def test_forged_and_repeated_frames_end_the_connection(make_tenant: Any, attack: str) -> None:
    tenant = make_tenant(hmac_secret=SECRET)
    nonce = "nonce-of-this-socket"
    async with signed_socket(tenant, nonce) as channel:
        for each in ATTACKS[attack](nonce):
            await channel.send(each)
        assert await close_code(channel) == 1008


# -- lost connections ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_asked_again_after_a_reconnect_nothing_is_reserved_twice(tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, 100)
    asks = [ask(f"again-{n}", call(n, **_PRICED)) for n in range(50)]
    url = tenant.gateway.base_url
    for _ in range(3):
        async with asker(url, tenant.api_key) as client:
            await client.send(*asks)
            client.channel.transport.abort()
    async with asker(url, tenant.api_key) as client:
        answers = await client.ask(*asks)
        assert {status for status, _ in answers} == {200}
        ids = {body["reservation_id"] for _, body in answers}
        assert len(ids) == 50
    held = sum(body["reserved_nanousd"] for _, body in answers)
    newest = max(body["budget"]["reserved_nanousd"] for _, body in answers)
    assert newest == held == 50 * 1_000_000


@pytest.mark.fault
@pytest.mark.asyncio
async def test_a_killed_gateway_answers_again_what_it_had_decided(
    serve: Any, tmp_path: Path
) -> None:
    served = await asyncio.to_thread(serve)
    with contextlib.closing(AdminClient(served.base_url, served.admin_key)) as admin:
        await asyncio.to_thread(admin.set_budget, 5)  # 50 of these
    asks = [ask(f"k{n}", call(n, **_PRICED)) for n in range(200)]
    first: dict[str, tuple[int, Any]] = {}
    async with asker(served.base_url, served.api_key) as client:
        for start in range(0, 200, 20):
            await client.send(*asks[start : start + 20])
        while len(client.told) < 30:
            await client.read()
        served.process.send_signal(signal.SIGKILL)
        first = client.told
    await asyncio.to_thread(served.process.wait, WAIT_S)
    again = await asyncio.to_thread(serve)
    async with asker(again.base_url, again.api_key) as client:
        answers = await client.ask(*asks)
        for ask_id, answer in first.items():
            if answer[0] == 200:
                assert client.told[ask_id] == answer, "an answer that was read was committed"
        assert sum(status == 200 for status, _ in answers) == 50
    with contextlib.closing(AdminClient(again.base_url, again.admin_key)) as admin:
        report = await asyncio.to_thread(admin.verify_ledger)
    assert (report["problems"], report["reservations_open"]) == ([], 50)


@pytest.mark.asyncio
async def test_a_gateway_that_ends_answers_what_it_has_read(serve: Any) -> None:
    served = await asyncio.to_thread(serve, "--drain-timeout-ms", "60000")
    async with asker(served.base_url, served.api_key) as client:
        await client.ask(ask("warm", call(0)))
        await client.send(*(ask(f"e{n}", call(n)) for n in range(100)))
        while len(client.told) < 2:  # the frame has been read
            await client.read()
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionClosed):
            while True:
                await client.read()
        assert client.channel.close_code == 1012
        assert len(client.told) == 101


# -- pressure --------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.asyncio
async def test_a_client_that_never_reads_takes_no_memory(serve: Any) -> None:
    served = await asyncio.to_thread(serve)
    process = psutil.Process(served.process.pid)
    parts = urlsplit(served.base_url)
    loop = asyncio.get_running_loop()
    async with asker(served.base_url, served.api_key) as other:
        await other.ask(*(ask(f"warm-{n}", call(n)) for n in range(500)))
        before = process.memory_info().rss
        mute = socket.create_connection((parts.hostname, parts.port))
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mute.sendall(
            f"GET {_PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"X-API-Key: {served.api_key}\r\nX-Guard-Protocol: 3\r\n\r\n".encode()
        )
        mute.setblocking(False)
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # frames before the answer are no WebSocket's
            head += await loop.sock_recv(mute, 1)
        # Every request is a bad one: answered, and kept nowhere.
        body = frame([ask(f"m{n}", {"kind": "x" * 50}) for n in range(900)]).encode()
        piece = b"\x81\xff" + len(body).to_bytes(8, "big") + bytes(4) + body
        sent = 0
        with contextlib.suppress(TimeoutError):  # the gateway stops reading
            async with asyncio.timeout(3):
                while sent < 100_000_000:
                    sent += len(piece)
                    await loop.sock_sendall(mute, piece)
        assert sent < 100_000_000
        assert (await other.ask(ask("meanwhile", call("x"))))[0][0] == 200
        assert process.memory_info().rss - before < 40_000_000
        mute.close()


PUSHES = 600
IN_FLIGHT = 200
UNREAD = 500


@pytest.mark.asyncio
async def test_kills_are_not_behind_decisions(tenant: Any) -> None:
    """Each overtakes all answers but those that were under way when it was given."""
    app, loop = tenant.gateway._server.app, tenant.gateway._loop
    decided: dict[int, int] = {}
    done = threading.Event()

    def decisions() -> int:
        return int(app.counts.statuses.get((wire.GATE_PATH, 200), 0))

    def kill(seq: int) -> None:
        if seq - len(seen) > UNREAD:  # a client that is as slow as this machine is not cut off
            loop.call_later(0.0005, kill, seq)
            return
        decided[seq] = decisions() - before
        message = wire.ControlMessage(seq=seq, type="kill", workflow_id=f"w{seq}")
        app.hub.publish([PostCommitEvent("control", tenant.organisation_id, message)])
        if not done.is_set():
            loop.call_later(0.0005, kill, seq + 1)

    before = decisions()
    seen: list[int] = []
    asked = 0
    async with asker(tenant.gateway.base_url, tenant.api_key) as client:
        await client.read()  # the hello
        loop.call_soon_threadsafe(kill, 1)
        try:
            while len(seen) < PUSHES or len(client.told) <= PUSHES:  # decisions go on meanwhile
                while asked - len(client.told) < IN_FLIGHT:
                    await client.send(*(ask(f"d{asked + n}", call(asked + n)) for n in range(50)))
                    asked += 50
                await client.read()
                for message in client.pushed:
                    if message["type"] == "kill":
                        seen.append(message["seq"])
                        overtaken = len(client.told) - decided[message["seq"]]
                        assert overtaken <= 2 * IN_FLIGHT
                client.pushed.clear()
        finally:
            done.set()  # else it goes on for ever, in the gateway of all other tests
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.asyncio
async def test_a_recall_goes_to_the_sockets_of_the_keys_alone(tenant: Any) -> None:
    hub, loop = tenant.gateway._server.app.hub, tenant.gateway._loop
    [own] = tenant.admin.keys()
    other = await asyncio.to_thread(tenant.admin.create_key_full, "other")
    url = tenant.gateway.base_url
    async with (
        asker(url, tenant.api_key) as first,
        asker(url, tenant.api_key) as second,
        asker(url, other["api_key"]) as third,
    ):
        for client in (first, second, third):
            await client.ask(ask(f"up-{id(client)}", call(1)))
            client.pushed.clear()

        async def recall() -> int:
            asked: int = hub.recall(tenant.organisation_id, {own["key_id"]: ["l1", "l2"]})
            return asked

        future = asyncio.run_coroutine_threadsafe(recall(), loop)
        assert await asyncio.wrap_future(future) == 2
        for client in (first, second):
            while not any(each["type"] == "recall" for each in client.pushed):
                await client.read()
            [message] = [each for each in client.pushed if each["type"] == "recall"]
            assert (message["seq"], message["leases"]) == (0, ["l1", "l2"])
        await third.ask(ask("last", call(2)))
        assert not [each for each in third.pushed if each["type"] == "recall"]
