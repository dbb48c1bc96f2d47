"""The accounts of what reading costs."""

from __future__ import annotations

import asyncio
import gc

import attrs
import pytest

from guard.gateway.reading import ReadQuota, ReadQuotas


@attrs.define
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@attrs.define(eq=False)
class Upload:
    """A connection with slices left."""

    name: str
    account: ReadQuota
    order: list[str]
    slices: int = 3

    def read_on(self) -> None:
        self.order.append(self.name)
        self.slices -= 1
        if self.slices:
            self.account.wait_turn(self)


def test_a_quarter_of_the_time_beyond_a_burst() -> None:
    clock = Clock()
    account = ReadQuota(100, clock)
    account.charge(0.05)
    assert account.wait_s <= 1e-9, "the burst"
    account.charge(0.1)
    assert account.wait_s == pytest.approx(0.4)
    clock.now_s += 0.4
    assert account.wait_s <= 1e-9
    assert not account.is_clear
    account.charge(-0.15)
    assert account.is_clear, "given back"


def test_connections_of_one_account_take_turns() -> None:
    async def read() -> list[str]:
        account, order = ReadQuota(100), list[str]()
        uploads = [Upload(name, account, order) for name in "abc"]
        for each in uploads:
            account.wait_turn(each)
        while any(each.slices for each in uploads):
            await asyncio.sleep(0)
        return order

    assert asyncio.run(read()) == [*"abcabcabc"]


@attrs.define(eq=False)
class Failing(Upload):
    """A connection whose first slice cannot be read."""

    def read_on(self) -> None:
        raise RuntimeError("a defect")


def test_a_connection_that_fails_holds_up_no_other() -> None:
    async def read() -> list[str]:
        account, order, failures = ReadQuota(100), list[str](), list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        account.wait_turn(Failing("a", account, order))
        account.wait_turn(Upload("b", account, order))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(failures) == 1
        return order

    assert asyncio.run(read()) == [*"bbb"]


def test_to_connect_again_is_no_way_out() -> None:
    accounts = ReadQuotas()
    owing = accounts.of_address("192.0.2.1")
    owing.charge(1e6)
    accounts.keep(owing)
    number = id(owing)
    del owing
    gc.collect()
    accounts.drop_clear()
    assert id(accounts.of_address("192.0.2.1")) == number
    assert not accounts.of_address("192.0.2.1").is_clear


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("", "", True),
    ],
)
def test_whose_address_it_is(one: str, other: str, is_same: bool) -> None:
    accounts = ReadQuotas()
    first = accounts.of_address(one)
    assert (first is accounts.of_address(other)) is is_same
