"""Strangers who try passwords keep no operator out, and get few tries."""

from __future__ import annotations

import contextlib
import heapq
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import httpx
import pytest
from click.testing import CliRunner

from guard.gateway.cli.main import gateway as command
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.services.devices import device_of, issue
from guard.gateway.services.sign_in_throttle import (
    LINE_MAX_MS,
    NAME_INTERVAL_MS,
    STRANGERS_MAX,
    Throttle,
    ThrottledError,
)
from tests.dashboard.conftest import PASSWORD, csrf_in
from tests.support.waiting import until

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
CHECK_MS = 100
GUESSES_PER_NAME_MAX = 1810
GUESSES_PER_ADDRESS_MAX = 60
NEW_DEVICE_MAX_MS = 60_000
"""The three figures of docs/security.md."""


# -- in simulated time ---------------------------------------------------------------------------


@attrs.define
class Siege:
    """Strangers who try passwords as fast as they may, from some addresses, for some names."""

    throttle: Throttle = attrs.field(factory=Throttle)
    guesses: dict[str, list[int]] = attrs.field(factory=dict)
    by_address: dict[str, int] = attrs.field(factory=dict)
    _due: list[tuple[int, int, str, str | None]] = attrs.field(factory=list)
    _number: int = 0

    def begin(self, at_ms: int, address: str) -> None:
        """Have an address try from some time on."""
        self._at(at_ms, address, None)

    def _at(self, at_ms: int, address: str, checked: str | None) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_ms, self._number, address, checked))

    def run(self, until_ms: int, names: Callable[[], str]) -> None:
        """Let them try until some time."""
        while self._due and self._due[0][0] <= until_ms:
            now_ms, _, address, checked = heapq.heappop(self._due)
            if checked is not None:
                self.throttle.left(address)
                self.guesses.setdefault(checked, []).append(now_ms)
                self.by_address[address] = self.by_address.get(address, 0) + 1
            name = names()
            try:
                wait_ms = self.throttle.enter(now_ms, address, name)
            except ThrottledError as exc:
                self._at(now_ms + exc.retry_after_ms, address, None)
            else:
                self._at(now_ms + wait_ms + CHECK_MS, address, name)


def _lets_in(siege: Siege, now_ms: int, names: Callable[[], str], *, wrong: int) -> int:
    """Return how long an operator on a new device takes, who tries again as told."""
    began_ms, left = now_ms, wrong
    while True:
        siege.run(now_ms, names)
        try:
            wait_ms = siege.throttle.enter(now_ms, "operator", "admin")
        except ThrottledError as exc:
            now_ms += exc.retry_after_ms
            continue
        siege.run(now_ms + wait_ms + CHECK_MS, names)
        now_ms += wait_ms + CHECK_MS
        siege.throttle.left("operator")
        if not left:
            siege.throttle.succeeded("operator", "admin")
            return now_ms - began_ms
        left -= 1


@pytest.mark.generator("sign-in attempts")
@pytest.mark.parametrize("seed", range(30))
def test_an_operator_gets_in_whatever_strangers_do(
    seed: int, count_cases: Callable[[int], None]
) -> None:
    """With a known device at once; with a new one within a minute."""
    chance = random.Random(seed)
    siege = Siege()
    others = ["admin", *(f"n{number}" for number in range(chance.choice([0, 1, 30])))]
    for number in range(chance.choice([1, 5, 12, 19])):
        siege.begin(chance.randrange(60_000), f"a{number}")
    now_ms = cases = 0
    while now_ms < HOUR_MS:
        now_ms += chance.randrange(1, 240_000)
        siege.run(now_ms, lambda: chance.choice(others))
        cases += 1
        wrong = chance.randrange(4)
        if chance.random() < 0.5:
            for _ in range(wrong):
                siege.throttle.enter_known(now_ms, "device")
            siege.throttle.enter_known(now_ms, "device")
            siege.throttle.succeeded_known("device")
        else:
            took_ms = _lets_in(siege, now_ms, lambda: chance.choice(others), wrong=wrong)
            assert took_ms <= NEW_DEVICE_MAX_MS * (wrong + 1)
            now_ms += took_ms
    count_cases(cases)


@pytest.mark.generator("guesses in an hour")
@pytest.mark.parametrize("addresses", [1, 12, 100, 1000])
@pytest.mark.parametrize("names", [1, 3])
def test_strangers_get_few_tries_in_an_hour(
    addresses: int, names: int, count_cases: Callable[[int], None]
) -> None:
    siege = Siege()
    chance = random.Random(addresses)
    for number in range(addresses):
        siege.begin(chance.randrange(1000), f"a{number}")
    siege.run(HOUR_MS, lambda: f"n{chance.randrange(names)}")
    for times in siege.guesses.values():
        assert len(times) <= GUESSES_PER_NAME_MAX
    assert max(siege.by_address.values()) <= GUESSES_PER_ADDRESS_MAX
    count_cases(sum(siege.by_address.values()))


def test_who_pauses_gets_no_more_tries() -> None:
    """Bursts with pauses that let the failures be forgotten."""
    throttle = Throttle()
    made = now_ms = 0
    while now_ms < HOUR_MS:
        for number in range(60):
            with contextlib.suppress(ThrottledError):
                throttle.enter(now_ms, f"a{number}", "admin")
                throttle.left(f"a{number}")
                made += 1
        now_ms += 901_000 + LINE_MAX_MS
    assert made <= GUESSES_PER_NAME_MAX


def test_one_address_and_one_device_wait_for_their_own_failures() -> None:
    throttle = Throttle()
    now_ms, waits = 0, []
    for _ in range(20):
        try:
            throttle.enter(now_ms, "here", f"name-{now_ms}")
            throttle.left("here")
        except ThrottledError as exc:
            waits.append(exc.retry_after_ms)
            now_ms += exc.retry_after_ms
    assert waits[:4] == [1000, 2000, 4000, 8000]
    assert max(waits) <= 300_000
    assert throttle.enter(now_ms, "elsewhere", "alice") == 0
    known: list[int] = []
    for _ in range(40):
        try:
            throttle.enter_known(now_ms, "device")
        except ThrottledError as exc:
            known.append(exc.retry_after_ms)
            now_ms += exc.retry_after_ms
    assert known[0] == 1000
    assert max(known) == 30_000


def test_the_line_is_bounded() -> None:
    throttle = Throttle()
    waits = []
    for number in range(1000):
        with contextlib.suppress(ThrottledError):
            waits.append(throttle.enter(0, f"a{number}", "admin"))
    assert max(waits) <= LINE_MAX_MS
    assert len(waits) <= min(STRANGERS_MAX, 10 + LINE_MAX_MS // NAME_INTERVAL_MS)
    with pytest.raises(ThrottledError):
        throttle.enter(0, "a0", "another")  # one attempt of an address


# -- devices -------------------------------------------------------------------------------------


@pytest.mark.generator("tokens of devices")
def test_a_token_is_good_for_one_operator_password_and_time(
    count_cases: Callable[[int], None],
) -> None:
    token = issue("o", "hash", 1000)
    assert device_of(token, "o", "hash", 999) is not None
    assert device_of(token, "o", "hash", 1000) is None
    assert device_of(token, "p", "hash", 0) is None
    assert device_of(token, "o", "another", 0) is None
    changed = 0
    for at in range(len(token)):
        for letter in "0aZ.-\0é":
            other = token[:at] + letter + token[at + 1 :]
            assert (device_of(other, "o", "hash", 0) is not None) is (other == token)
            changed += 1
    for wrong in ("", ".", "..", "9" * 500, token + "\n", f" {token}", token.upper()):
        assert device_of(wrong, "o", "hash", 0) is None
    count_cases(changed)


# -- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture
def besieged(tmp_path: Path) -> Iterator[Gateway]:
    with run_gateway(tmp_path / "g.sqlite3", trusted_proxies=("127.0.0.0/8",)) as gateway:
        gateway.admin.set_password("admin", PASSWORD)
        yield gateway


@pytest.fixture
def timeless(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway whose clock stands still: no attempt comes so late that it may be made again."""
    with run_gateway(
        tmp_path / "g.sqlite3", trusted_proxies=("127.0.0.0/8",), clock_ms=lambda: NOW_MS
    ) as gateway:
        gateway.admin.set_password("admin", PASSWORD)
        yield gateway


def _throttle(gateway: Gateway) -> Throttle:
    assert gateway._server is not None
    return gateway._server.app.operators._throttle


def _attempt(
    gateway: Gateway, http: httpx.Client, password: str, address: str, name: str = "admin"
) -> httpx.Response:
    body = {"name": name, "password": password, "csrf": csrf_in(http.get("/sign-in").text)}
    headers = {"Origin": gateway.base_url, "X-Forwarded-For": address}
    return http.post("/sign-in", data=body, headers=headers)


def _client(gateway: Gateway, timeout_s: float = 90) -> httpx.Client:
    return httpx.Client(base_url=gateway.base_url, trust_env=False, timeout=timeout_s)


@contextlib.contextmanager
def _strangers(gateway: Gateway, count: int) -> Iterator[list[int]]:
    """Try passwords from many addresses while the block runs."""
    ended = threading.Event()
    statuses: list[int] = []

    def attack(number: int) -> None:
        with _client(gateway, timeout_s=2) as http:
            while not ended.is_set():
                try:
                    reply = _attempt(gateway, http, "wrong password", f"192.0.2.{number}")
                    statuses.append(reply.status_code)
                except httpx.TransportError:  # it is in line
                    ended.wait(0.02)
                    continue
                ended.wait(0.02 if reply.status_code == 403 else 0.2)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        for thread in threads:
            thread.join(90)


def test_strangers_do_not_lock_a_known_device_out(
    besieged: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle = _throttle(besieged)
    enter_known = throttle.enter_known
    known: list[str] = []

    def noted(now_ms: int, device: str) -> None:
        enter_known(now_ms, device)
        known.append(device)

    monkeypatch.setattr(throttle, "enter_known", noted)
    with _client(besieged) as http, _client(besieged) as gates:
        assert _attempt(besieged, http, PASSWORD, "198.51.100.1").status_code == 303
        cookie = next(each for each in http.cookies.jar if each.name == "guard_device")
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "strict"
        assert cookie.expires is not None
        assert cookie.expires > time.time() + 300 * 86_400
        headers = {"X-API-Key": besieged.api_key, "X-Guard-Protocol": "3"}
        with _strangers(besieged, 12) as statuses:
            until(lambda: 429 in statuses)
            for number in range(20):
                # From everywhere, also from a stranger's address.
                reply = _attempt(besieged, http, PASSWORD, f"192.0.2.{number}")
                assert reply.status_code == 303, f"{number}: {reply.status_code}"
                body = {"call_id": f"c{number}", "kind": "call", "function": "f"}
                assert gates.post("/gate", json=body, headers=headers).status_code == 200
        assert len(known) == 20, "each was let in past the line of the strangers"
        assert 303 not in statuses


def test_strangers_do_not_lock_a_new_device_out(
    besieged: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle = _throttle(besieged)
    enter = throttle.enter
    waits_ms: dict[str, int] = {}

    def noted(now_ms: int, address: str, name: str) -> int:
        waits_ms[address] = enter(now_ms, address, name)
        return waits_ms[address]

    monkeypatch.setattr(throttle, "enter", noted)
    with _strangers(besieged, 4) as statuses:
        until(lambda: len(statuses) >= 12)
        with _client(besieged) as http:
            assert _attempt(besieged, http, PASSWORD, "198.51.100.1").status_code == 303
    assert waits_ms["198.51.100.1"] < NEW_DEVICE_MAX_MS


def test_who_waits_in_line_holds_no_shutdown_up(tmp_path: Path) -> None:
    """They are told to try again, and no password is checked for them."""
    count = 28  # ten are checked at once; the others wait for two seconds more each

    def attempt(number: int) -> int:
        with _client(gateway) as http:
            reply = _attempt(gateway, http, "wrong password", f"192.0.2.{number}")
            return reply.status_code

    with (
        run_gateway(
            tmp_path / "g.sqlite3", trusted_proxies=("127.0.0.0/8",), drain_timeout_ms=60_000
        ) as gateway,
        ThreadPoolExecutor(count) as pool,
    ):
        gateway.admin.set_password("admin", PASSWORD)
        throttle = _throttle(gateway)
        asked = [pool.submit(attempt, number) for number in range(count)]
        until(lambda: throttle._failures["name"].get("admin", (0, 0))[0] == count)
        gateway.stop()
        assert not gateway._thread.is_alive()
        statuses = [each.result() for each in asked]
        assert set(statuses) == {403, 429}


def test_a_new_password_ends_what_devices_are_known(besieged: Gateway) -> None:
    with _client(besieged) as http:
        assert _attempt(besieged, http, PASSWORD, "198.51.100.1").status_code == 303
        token = http.cookies["guard_device"]
        link = f"/sign-in?name=admin&device={token}"
        assert http.get(link).headers["location"] == "/sign-in?name=admin"
        besieged.admin.set_password("admin", PASSWORD)
        assert http.get(link).headers["location"] == "/sign-in?expired"


def test_guessing_with_a_known_device_is_throttled(timeless: Gateway) -> None:
    with _client(timeless) as http:
        assert _attempt(timeless, http, PASSWORD, "198.51.100.1").status_code == 303
        statuses = [
            _attempt(timeless, http, "wrong password", f"198.51.100.{number}").status_code
            for number in range(11)
        ]
        assert statuses == [403] * 10 + [429]


def test_a_link_lets_a_new_device_through(besieged: Gateway) -> None:
    """While its address may not try, and once more as a known device."""
    with _client(besieged) as http:
        while _attempt(besieged, http, "wrong password", "198.51.100.1").status_code != 429:
            pass
        words = ["sign-in-link", "--url", besieged.base_url, "--admin-key", besieged.admin_key]
        result = CliRunner().invoke(command, words)
        assert result.exit_code == 0, result.output
        link = result.output.split()[-1]
        reply = http.get(link)
        assert reply.status_code == 303
        assert "device" not in reply.headers["location"]
        assert "set-cookie" in reply.headers
        page = http.get(reply.headers["location"])
        assert 'value="admin"' in page.text
        assert _attempt(besieged, http, PASSWORD, "198.51.100.1").status_code == 303


@pytest.mark.parametrize("query", ["device=x", "device=", "name=nobody&device=1.2.3"])
def test_another_link_leaves_what_the_browser_has(besieged: Gateway, query: str) -> None:
    with _client(besieged) as http:
        assert _attempt(besieged, http, PASSWORD, "198.51.100.1").status_code == 303
        token = http.cookies["guard_device"]
        reply = http.get(f"/sign-in?{query}")
        assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in?expired")
        assert http.cookies["guard_device"] == token
        assert "The link has expired" in http.get("/sign-in?expired").text


def test_a_link_is_for_ones_own_operators(besieged: Gateway) -> None:
    acme = besieged.admin.create_organisation("acme")["organisation_id"]
    url = f"{besieged.base_url}/api/v1/admin/operators"
    bearer = {"Authorization": f"Bearer {besieged.admin_key}"}
    with httpx.Client(headers=bearer) as http:
        wide = http.post(f"{url}/admin/sign-in-link")
        assert wide.status_code == 200
        mine = http.post(f"{url}/admin/sign-in-link", params={"organisation": acme})
        assert mine.status_code == 404, "one who sees all"
        assert http.post(f"{url}/nobody/sign-in-link").status_code == 404
        own = {"organisation": acme}
        http.put(f"{url}/alice", params=own, json={"password": PASSWORD})
        assert http.post(f"{url}/alice/sign-in-link", params=own).status_code == 200
        entries = http.get(f"{besieged.base_url}/api/v1/admin/audit", params=own).json()
        assert "operator.link" in [each["action"] for each in entries]


def test_guessing_from_one_address_is_throttled(timeless: Gateway) -> None:
    with _client(timeless) as http:
        statuses = [
            _attempt(timeless, http, "wrong password", "2001:db8::1", f"name-{number}").status_code
            for number in range(5)
        ]
        assert statuses == [403] * 5
        reply = _attempt(timeless, http, PASSWORD, "2001:db8::2")
        assert reply.status_code == 429, "the same network, and the right password waits as well"
        assert int(reply.headers["retry-after"]) >= 1
