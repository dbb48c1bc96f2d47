"""Requests over the control socket: the same answers as over HTTP, none of them twice."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from guard.core import wire
from guard.gateway.embedded import run_gateway
from guard.gateway.services.load import REQUEST_BYTES
from tests.support.asker import ask, asker, call, close_code, frame
from tests.support.prometheus import METRICS_KEY, metrics_of
from tests.support.waiting import until_async


def opened(tenant: Any, **options: Any) -> Any:
    return asker(tenant.gateway.base_url, tenant.api_key, **options)


# -- the same as over HTTP -------------------------------------------------------------------------


def test_the_gateway_says_that_it_answers_over_the_socket(tenant: Any) -> None:
    assert wire.FEATURE_GATE_WS in tenant.http.get(wire.CAPABILITIES_PATH).json()["features"]


@pytest.mark.asyncio
async def test_answers_are_those_over_http(tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, 10, scope_kind="workflow", scope_id="poor")
    await asyncio.to_thread(tenant.admin.set_policy, tools_block=["delete_*"])
    bodies = [
        call(1, workflow_id="w"),
        call(2, workflow_id="w", tool_name="delete_all", kind="tool"),
        call(3, workflow_id="poor", model="gpt-4o", max_input_tokens=0, max_output_tokens=10**6),
        {"kind": "call"},
        {**call(4), "call_id": 4},
    ]
    over_http = []
    for body in bodies:
        reply = await asyncio.to_thread(tenant.http.post, "/gate", json=body)
        over_http.append((reply.status_code, reply.json()))
    async with opened(tenant) as client:
        over_socket = await client.ask(*(ask(f"a{n}", body) for n, body in enumerate(bodies)))
    assert [status for status, _ in over_socket] == [200, 403, 402, 400, 400]
    for (status, body), (expected, other) in zip(over_socket, over_http, strict=True):
        assert status == expected
        for changing in ("reservation_id", "expires_at_ms", "budget", "reserved_nanousd"):
            body.pop(changing, None)
            other.pop(changing, None)
        assert body == other


@pytest.mark.asyncio
async def test_a_reservation_is_released_over_the_socket(tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, 100)
    async with opened(tenant) as client:
        [(_, allowed)] = await client.ask(ask("a", call(1)))
        held = allowed["reserved_nanousd"]
        assert held > 0
        release = {"reservation_id": allowed["reservation_id"]}
        [(status, released)] = await client.ask(ask("b", release, "gate/release"))
        assert (status, released["released_nanousd"]) == (200, held)
        [(status, problem)] = await client.ask(
            ask("c", {"reservation_id": "unknown"}, "gate/release")
        )
        assert (status, problem["error_code"]) == (404, "GD-N001")


@pytest.mark.asyncio
async def test_an_id_is_an_idempotency_key_over_both_ways(tenant: Any) -> None:
    body = msgspec.json.encode(call("same"))
    same = wire.Ask("same", "gate", msgspec.Raw(body))
    raw = wire.encode(wire.Asks([same])).decode()
    async with opened(tenant) as client:
        await client.channel.send(raw)
        while "same" not in client.told:
            await client.read()
        first = client.told.pop("same")
        await client.channel.send(raw)
        while "same" not in client.told:
            await client.read()
        assert client.told["same"] == first
        again = await asyncio.to_thread(
            tenant.http.post,
            "/gate",
            content=body,
            headers={"Idempotency-Key": "same", "Content-Type": "application/json"},
        )
        assert again.headers["idempotency-replayed"] == "true"
        assert again.json() == first[1]
        [(status, problem)] = await client.ask(ask("empty", call(1)) | {"id": ""})
        assert (status, problem["error_code"]) == (400, "GD-P002")
        client.told.pop("same")
        [(status, problem)] = await client.ask(ask("same", call("other")))
        assert (status, problem["error_code"]) == (409, "GD-P001")


@pytest.mark.asyncio
async def test_many_in_flight_are_answered_once_each(tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_budget, 1, scope_kind="workflow", scope_id="few")
    fields = {"model": "gpt-4o", "max_input_tokens": 0, "max_output_tokens": 100}  # 0.1 cents each
    async with opened(tenant) as client:
        asks = [ask(f"m{n}", call(n, workflow_id="few", **fields)) for n in range(300)]
        answers = await client.ask(*asks)
        assert collections.Counter(status for status, _ in answers) == {200: 10, 402: 290}
        assert client.frames < 20, "the answers of one commit come together"
    assert tenant.admin.verify_ledger()["problems"] == []


# -- what may not be -------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("no JSON", 1007),
        ("[]", 1007),
        ('{"asks":3}', 1007),
        ('{"type":"asks"}', 1007),
        ('{"type":"asks","asks":[{"id":"a","op":"admin","body":{}}]}', 1007),
        ('{"type":"asks","asks":[{"id":"a","op":"gate","body":{}', 1007),
        (b"{}", 1003),
        (frame([ask(str(n), {}) for n in range(4097)]), 1008),
        ("x" * 1_100_000, 1009),
    ],
)
async def test_a_bad_frame_ends_the_connection(tenant: Any, sent: Any, code: int) -> None:
    async with opened(tenant) as client:
        await client.channel.send(sent)
        assert await close_code(client.channel) == code
    tenant.allowed()


@pytest.mark.asyncio
async def test_frames_of_other_kinds_are_passed_over(tenant: Any) -> None:
    async with opened(tenant) as client:
        await client.channel.send('{"type":"ack","seq":3}')
        await client.channel.send('{"type":"something newer","more":[1]}')
        assert (await client.ask(ask("a", call(1))))[0][0] == 200


@pytest.mark.asyncio
async def test_a_frame_may_come_in_pieces(tenant: Any) -> None:
    text = frame([ask("pieces", call(1))])
    async with opened(tenant) as client:
        await client.channel.send([text[:10], text[10:40], text[40:]])
        while "pieces" not in client.told:
            await client.read()
        assert client.told["pieces"][0] == 200


@pytest.mark.asyncio
async def test_a_revoked_key_decides_nothing_more(tenant: Any) -> None:
    key_id = tenant.admin.keys()[0]["key_id"]
    async with opened(tenant) as client:
        assert (await client.ask(ask("before", call(1))))[0][0] == 200

        async def go_on() -> None:
            for number in range(100_000):
                await client.send(ask(f"r{number}", call(number)))
                await client.read()

        going = asyncio.create_task(go_on())
        await asyncio.to_thread(tenant.admin.revoke_key, key_id)
        revoked_after = len(client.told)
        with pytest.raises(ConnectionClosed) as closed:
            await going
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401
        assert len(client.told) - revoked_after <= 3, "at most what was decided already"


@pytest.mark.asyncio
async def test_a_key_that_expires_decides_nothing_more(tenant: Any) -> None:
    key_id = tenant.admin.keys()[0]["key_id"]
    async with opened(tenant) as client:
        await asyncio.to_thread(tenant.admin.rotate_key, key_id, 200)
        await until_async(lambda: tenant.gate().status_code == 401)

        async def go_on() -> None:
            await client.send(ask("late", call(1)))
            while True:
                await client.read()

        with pytest.raises(ConnectionClosed) as closed:
            await go_on()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401
        assert not client.told


@pytest.mark.asyncio
async def test_what_does_not_fit_is_refused_as_over_http() -> None:
    with run_gateway(max_pending_bytes=8 * REQUEST_BYTES, metrics_key=METRICS_KEY) as gateway:
        async with asker(gateway.base_url, gateway.api_key) as client:
            answers = await client.ask(*(ask(f"o{n}", call(n)) for n in range(50)))
            by_status = collections.Counter(status for status, _ in answers)
            assert set(by_status) == {200, 429}
            problem = next(body for status, body in answers if status == 429)
            assert (problem["error_code"], problem["retry_after_ms"]) == ("GD-R001", 1000)
            assert (await client.ask(ask("afterwards", call("x"))))[0][0] == 200
        metrics = await asyncio.to_thread(metrics_of, gateway.base_url)
        assert "guard_gateway_pending_bytes 0.0" in metrics
