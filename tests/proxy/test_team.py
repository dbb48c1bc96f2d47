"""``guard proxy serve``: many callers behind one proxy, and behind several."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway, run_gateway
from guard.local_gateway import join
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.llm_vendor import vendor_process
from tests.support.programs import environment, killed_at_last
from tests.support.prometheus import METRICS_KEY, metrics_of
from tests.support.recording_vendor import RecordingVendor
from tests.support.waiting import WAIT_S, until

CHAT = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
_numbers = itertools.count(1)


_clients: list[AdminClient] = []


def operator_of(gateway: Gateway, organisation: str) -> AdminClient:
    """Reach the gateway as an organisation's operator; closed with the gateway."""
    admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=organisation)
    _clients.append(admin)
    return admin


@attrs.frozen
class Caller:
    """A program's key, and its organisation's operator."""

    admin: AdminClient
    key: str
    key_id: str

    @classmethod
    def of(cls, gateway: Gateway, organisation: str | None = None) -> Caller:
        """Make a key in an organisation; in one of its own without."""
        name = organisation or f"team-{next(_numbers)}"
        if organisation is None:
            gateway.admin.create_organisation(name)
        admin = operator_of(gateway, name)
        made = admin.create_key_full("caller")
        return cls(admin, made["api_key"], made["key"]["key_id"])

    def post(self, url: str, body: dict[str, Any] = CHAT) -> httpx.Response:
        """Send a chat through a proxy."""
        headers = {"x-guard-key": self.key, "user-agent": "codex_cli_rs/0.4"}
        # It may wait for room as long as the proxy lets it.
        path = f"{url}/openai/v1/chat/completions"
        return httpx.post(path, json=body, headers=headers, timeout=2 * WAIT_S)

    def charged(self) -> int:
        """Return what its key was charged."""
        rows = {row["group"]: row for row in self.admin.usage("key")}
        return int(rows.get(self.key_id, {}).get("cost_nanousd", 0))


@contextlib.contextmanager
def serving(*words: str, **settings: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``guard proxy serve``; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "guard", "proxy", "serve", "--port", "0", *words],
        env=environment({"GUARD_PRICE_LOCAL": "1", **settings}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with killed_at_last(process):
        assert process.stdout is not None
        found = re.search(r"https?://[\d.:]+", process.stdout.readline())
        assert found is not None, process.communicate(timeout=WAIT_S)[1]
        yield found[0], process


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Run a gateway of these tests' own: it gets more organisations."""
    with run_gateway() as running:
        yield running
        while _clients:
            _clients.pop().close()


@pytest.fixture
def operator(gateway: Gateway) -> AdminClient:
    """Reach the gateway as the operator of its first organisation."""
    return operator_of(gateway, gateway.organisation_id)


@pytest.fixture
def proxys(gateway: Gateway, operator: AdminClient) -> dict[str, str]:
    """Return the settings of a proxy of this gateway."""
    made = operator.create_key_full("proxy", role="proxy", every_organisation=True)
    return {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"]}


def test_each_request_is_charged_to_the_key_that_it_names(
    gateway: Gateway, vendor: StandIn, proxys: dict[str, str]
) -> None:
    one, other = Caller.of(gateway), Caller.of(gateway)
    with serving("--upstream", f"openai={vendor.url}", **proxys) as (url, process):
        assert one.post(url).status_code == 200
        by_path = httpx.post(f"{url}/k/{other.key}/openai/v1/chat/completions", json=CHAT)
        assert by_path.status_code == 200
        assert one.post(url).status_code == 200
        for request in (b"x-guard-key", one.key.encode(), other.key.encode()):
            assert all(request not in body for body in vendor.bodies)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert one.charged() == 2 * other.charged() > 0
    (agent,) = {event["agent"] for event in one.admin.events(type="llm")}
    assert agent == "codex_cli_rs"


def test_guards_own_headers_go_no_further(gateway: Gateway, proxys: dict[str, str]) -> None:
    caller = Caller.of(gateway)
    caller.admin.change_key(caller.key_id, may_name=["user", "tags"])
    own = {"x-guard-key": caller.key, "X-Guard-User": "alice@example.com", "x-guard-tags": "a=b"}
    with (
        contextlib.closing(RecordingVendor()) as upstream,
        serving("--upstream", f"openai={upstream.url}", **proxys) as (url, _),
    ):
        path = f"{url}/openai/v1/chat/completions"
        sent = {**own, "authorization": "Bearer sk-own", "x-other": "kept"}
        assert httpx.post(path, json=CHAT, headers=sent, timeout=WAIT_S).status_code == 200
        (seen,) = upstream.requests
    assert (seen.values("authorization"), seen.values("x-other")) == (["Bearer sk-own"], ["kept"])
    assert not [name for name, _ in seen.headers if name.startswith("x-guard-")]


def test_metrics_are_for_who_has_their_key(proxys: dict[str, str]) -> None:
    own = {"Authorization": f"Bearer {proxys['GUARD_API_KEY']}"}
    with serving(**proxys) as (url, _):
        for headers in ({}, own, {"Authorization": "Bearer"}):
            answer = httpx.get(f"{url}/metrics", headers=headers)
            assert (answer.status_code, "guard_proxy" in answer.text) == (401, False)
            assert "GUARD_PROXY_METRICS_KEY" in answer.text
    with serving(**proxys, GUARD_PROXY_METRICS_KEY=METRICS_KEY) as (url, _):
        assert "guard_proxy_open_requests 0.0" in metrics_of(url)
        assert httpx.get(f"{url}/metrics", headers=own).status_code == 401


@pytest.mark.long
def test_open_answers_end_within_the_time_to_drain(
    gateway: Gateway, vendor: StandIn, proxys: dict[str, str]
) -> None:
    """By itself a proxy waits five seconds; a rollout may give it more."""
    caller = Caller.of(gateway)
    vendor.hold = True
    words = "--upstream", f"openai={vendor.url}", "--drain-timeout", "90s"
    try:
        with serving(*words, **proxys) as (url, process), httpx.Client() as http:
            ask = http.stream(
                "POST", f"{url}/openai/v1/chat/completions", json=CHAT | {"stream": True},
                headers={"x-guard-key": caller.key},
            )  # fmt: skip
            with ask as answer:
                parts = answer.iter_raw()
                assert next(parts)
                process.send_signal(signal.SIGTERM)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(7)
                with pytest.raises(httpx.ConnectError):
                    httpx.get(f"{url}/healthz")
            assert process.wait(WAIT_S) == 0
    finally:
        vendor.hold = False


def test_no_key_or_a_wrong_one_is_401_in_the_vendors_shape(
    gateway: Gateway, vendor: StandIn, proxys: dict[str, str]
) -> None:
    revoked = Caller.of(gateway)
    with serving("--upstream", f"openai={vendor.url}", **proxys) as (url, _):
        bare = httpx.post(f"{url}/openai/v1/chat/completions", json=CHAT)
        assert bare.status_code == 401
        assert "x-guard-key" in bare.json()["error"]["message"]
        wrong = attrs.evolve(revoked, key="gk_nobody")
        assert wrong.post(url).status_code == 401
        assert revoked.post(url).status_code == 200
        revoked.admin.revoke_key(revoked.key_id)
        until(lambda: revoked.post(url).status_code == 401)
    assert len(vendor.bodies) >= 1


def test_a_limit_and_a_kill_stop_their_own_caller_alone(
    gateway: Gateway, vendor: StandIn, proxys: dict[str, str]
) -> None:
    poor, rich = Caller.of(gateway), Caller.of(gateway)
    poor.admin.set_budget(limit_nanousd=1000)
    with serving("--upstream", f"openai={vendor.url}", **proxys) as (url, _):
        refused = poor.post(url)
        assert refused.status_code == 400
        assert (
            "the limit of $0.000001 is too low for a request" in refused.json()["error"]["message"]
        )
        assert rich.post(url).status_code == 200
        poor.admin.directive("kill", reason="all of ours")
        assert rich.post(url).status_code == 200
        vendor.hold = True
        headers = {"x-guard-key": rich.key}
        path = f"{url}/openai/v1/chat/completions"
        with httpx.stream("POST", path, json=CHAT | {"stream": True}, headers=headers,
                          timeout=WAIT_S) as response:  # fmt: skip
            chunks = response.iter_raw()
            next(chunks)
            rich.admin.directive("kill", reason="enough")
            assert b"an operator has stopped this: enough" in b"".join(chunks)


def test_what_names_no_workflow_is_its_teams(
    gateway: Gateway, vendor: StandIn, proxys: dict[str, str]
) -> None:
    admin = Caller.of(gateway).admin
    kinds: list[dict[str, str]] = [
        {"team": "search"}, {"team": "ads"}, {"team": "search", "workflow_id": "own"}, {},
    ]  # fmt: skip
    made = [admin.create_key_full("caller", **each) for each in kinds]
    callers = [Caller(admin, each["api_key"], each["key"]["key_id"]) for each in made]
    with serving("--upstream", f"openai={vendor.url}", **proxys) as (url, _):
        assert [each.post(url).status_code for each in callers] == [200] * 4
        names = {"search", "ads", "own", "default"}
        until(lambda: {row["group"] for row in admin.usage("workflow")} == names)
        admin.directive("pause", "search", reason="wrong prompt")
        until(lambda: callers[0].post(url).status_code == 400)
        assert "paused this: wrong prompt;" in callers[0].post(url).text
        assert [each.post(url).status_code for each in callers[1:]] == [200] * 3


def test_money_is_exact_behind_two_proxies(gateway: Gateway, proxys: dict[str, str]) -> None:
    limit = 10_000_000
    caller = Caller.of(gateway)
    caller.admin.set_budget(limit_nanousd=limit)
    settings = {**proxys, "GUARD_WAIT_FOR_ROOM_MS": "120000"}
    with vendor_process() as vendor:
        words = ("--upstream", f"openai={vendor}")
        with serving(*words, **settings) as (a, first), serving(*words, **settings) as (b, second):

            def work(number: int) -> None:
                while True:
                    answer = caller.post((a, b)[number % 2])
                    if answer.status_code != 200:
                        assert answer.status_code == 400, answer.text
                        return

            with ThreadPoolExecutor(12) as pool:
                list(pool.map(work, range(12)))
            for process in (first, second):
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0
        stats = httpx.get(f"{vendor}/stats").json()
    billed = stats["input_tokens"] * 2500 + stats["output_tokens"] * 10_000
    assert caller.charged() == billed
    assert limit * 0.85 <= billed <= limit


def test_for_one_person_without_keys(vendor: StandIn, tmp_path: Path) -> None:
    """``--local`` charges the local gateway; each tool is a workflow that can be stopped."""
    settings = {"GUARD_LOCAL_DIR": str(tmp_path)}
    with serving("--local", "--upstream", f"openai={vendor.url}", **settings) as (url, process):
        path = f"{url}/openai/v1/chat/completions"
        headers = {"user-agent": "opencode/1.2"}
        assert httpx.post(path, json=CHAT, headers=headers).status_code == 200
        gateway = join(tmp_path)
        admin = AdminClient(gateway.url, gateway.identity.admin_key)
        try:
            until(lambda: [row["group"] for row in admin.usage("workflow")] == ["opencode"])
            admin.directive("kill", "opencode", reason="enough")
            until(lambda: httpx.post(path, json=CHAT, headers=headers).status_code == 400)
            stopped = httpx.post(path, json=CHAT, headers=headers)
            assert "an operator has stopped this: enough" in stopped.text
            other = {"user-agent": "goose/1"}
            assert httpx.post(path, json=CHAT, headers=other).status_code == 200
        finally:
            admin.close()
            gateway.leave()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--upstream", "openai"), "NAME=URL"),
        (("--upstream", "openai=ftp://x"), "no URL of an upstream"),
        (("--tls-key", __file__), "--tls-key needs --tls-cert"),
        (("--port", "99999"), "--port"),
    ],
)
def test_what_is_given_wrongly_is_said(words: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "guard", "proxy", "serve", *words]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_a_key_that_is_no_proxys_is_said(gateway: Gateway, operator: AdminClient) -> None:
    made = operator.create_key_full("plain")
    command = [sys.executable, "-m", "guard", "proxy", "serve", "--port", "0"]
    env = environment({"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"]})
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 1
    assert "keys create NAME --role proxy" in done.stderr


def test_help_shows_how(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "guard", "proxy", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True,
                          env=environment() | {"PATH": os.environ["PATH"]})  # fmt: skip
    assert "ANTHROPIC_BASE_URL" in done.stdout
