"""Requests over the control socket: one frame for a turn, answers by id, nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import guard
from guard.control import ask_channel
from guard.control.ask_channel import AskChannel
from guard.core import wire
from guard.core.signing import verify_asks
from guard.runtime.runtime import GuardRuntime
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio
NONCE = "nonce-of-the-handshake"


class Wire:
    """The other end of the socket."""

    def __init__(self, secret: str | None = None) -> None:
        self.frames: list[bytes] = []
        self.told: list[tuple[str, wire.SocketAnswer | None]] = []
        self.takes = True
        self.switched: list[bool] = []
        self.channel = AskChannel(secret, switched=self.switched.append)
        self.channel.supports(True)
        self.channel.opened(self.send, NONCE)

    def send(self, frame: bytes) -> bool:
        if self.takes:
            self.frames.append(frame)
        return self.takes

    def ask(self, name: str, wait_s: float = 10.0) -> None:
        self.channel.ask("gate", name, b"{}", lambda told: self.told.append((name, told)), wait_s)

    def ids(self, frame: int = -1) -> list[str]:
        return [ask.id for ask in wire.decode(self.frames[frame], wire.Asks).asks]


def answer(name: str) -> wire.SocketAnswer:
    return wire.SocketAnswer(name, 200, msgspec.Raw(b"{}"))


async def test_what_is_asked_in_one_turn_goes_in_one_frame() -> None:
    other = Wire()
    for name in "abc":
        other.ask(name)
    await asyncio.sleep(0)
    assert len(other.frames) == 1
    assert other.ids() == ["a", "b", "c"]
    other.channel.answers([answer("b"), answer("nobody's"), answer("a")])
    assert [name for name, _ in other.told] == ["b", "a"]
    assert len(other.channel) == 1


async def test_the_end_of_the_socket_is_told_to_all_that_wait() -> None:
    other = Wire()
    other.ask("sent")
    await asyncio.sleep(0)
    other.ask("waiting")
    other.channel.closed()
    other.channel.closed()
    assert other.told == [("sent", None), ("waiting", None)]
    assert other.switched == [True, False]
    assert not other.channel.is_open


async def test_a_socket_that_takes_nothing_more_is_told_at_once() -> None:
    other = Wire()
    other.takes = False
    other.ask("a")
    await asyncio.sleep(0)
    assert other.told == [("a", None)]
    assert len(other.channel) == 0


async def test_without_an_answer_it_is_told_after_its_time() -> None:
    other = Wire()
    other.ask("soon", 1.0)
    other.ask("late", 100.0)
    await asyncio.sleep(0)
    now_s = asyncio.get_running_loop().time()
    other.channel.sweep(now_s + 2)
    assert other.told == [("soon", None)]


async def test_an_answer_that_was_given_up_is_not_the_answer_to_its_repeat() -> None:
    """Both have the same id: the gateway may have said "wait" to the first, and grant the next."""
    other = Wire()
    for _ in range(2):
        other.ask("a", 1.0)
        await asyncio.sleep(0)
        other.channel.sweep(asyncio.get_running_loop().time() + 2)
    other.ask("a", 100.0)
    await asyncio.sleep(0)
    waiting = wire.SocketAnswer("a", 200, msgspec.Raw(b'{"decision":"waiting"}'))
    other.channel.answers([waiting, waiting])
    assert other.told == [("a", None), ("a", None)]
    other.channel.answers([answer("a")])
    assert other.told[2:] == [("a", answer("a"))]


async def test_only_so_many_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_channel, "IN_FLIGHT_MAX", 2)
    other = Wire()
    for name in "abc":
        other.ask(name)
    await asyncio.sleep(0)
    assert other.ids() == ["a", "b"]
    other.channel.answers([answer("a")])
    assert other.ids() == ["c"]


async def test_frames_are_signed_each_for_its_place() -> None:
    other = Wire("secret")
    for name in "ab":
        other.ask(name)
        await asyncio.sleep(0)
    for number, frame in enumerate(other.frames, 1):
        signed = wire.decode(frame, wire.SignedFrame)
        assert signed.number == number
        payload = signed.payload.encode()
        assert verify_asks("secret", NONCE, number, payload, signed.signature)
        assert not verify_asks("secret", NONCE, number + 1, payload, signed.signature)


async def test_a_mistake_of_one_does_not_hurt_the_others() -> None:
    other = Wire()

    def fails(told: wire.SocketAnswer | None) -> None:
        raise LookupError

    other.channel.ask("gate", "bad", b"{}", fails, 1.0)
    other.ask("good")
    await asyncio.sleep(0)
    other.channel.answers([answer("bad"), answer("good")])
    assert [name for name, _ in other.told] == ["good"]


async def test_with_a_secret_against_the_gateway(
    start: Callable[..., GuardRuntime], tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tenant.admin.create_key_full("signed", signed=True)

    @guard.protect
    def work() -> str:
        return "ran"

    def calls() -> GuardRuntime:
        runtime = start(api_key=made["api_key"], hmac_secret=made["hmac_secret"])
        until(lambda: runtime.status().decisions == "socket")
        session = runtime.link.session
        assert session is not None

        async def gate(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("asked over HTTP")

        monkeypatch.setattr(session.client, "gate", gate)
        for name in ("w", "w", "v"):
            with guard.workflow(name):
                assert work() == "ran"
        return runtime

    runtime = await asyncio.to_thread(calls)
    assert runtime.status().leases == 2
