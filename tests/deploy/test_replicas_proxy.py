"""nginx's recipe for replicas as it is but for addresses: gateways and proxies, two of each."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest

import guard
from guard.gateway.embedded import Gateway, run_gateway
from guard.runtime.runtime import GuardRuntime
from tests.deploy.test_proxies import _nginx, running
from tests.guard.instrumentation.standin.server import StandIn
from tests.proxy.test_team import CHAT, Caller, serving
from tests.support import postgres
from tests.support.ports import free_port
from tests.support.prometheus import METRICS_KEY, metrics_of
from tests.support.waiting import WAIT_S, until

RECIPE = Path(__file__).parents[2] / "deploy" / "replicas" / "nginx.conf"


@attrs.frozen
class Site:
    """Two replicas behind nginx."""

    url: str
    api_key: str
    replicas: list[Gateway]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    database, port = postgres.url_of(tmp_path), free_port()
    options = {"public_url": f"http://127.0.0.1:{port}", "trusted_proxies": ("127.0.0.1",),
               "metrics_key": METRICS_KEY}  # fmt: skip
    with run_gateway(database, **options) as one, run_gateway(database, **options) as two:
        hosts = [each.base_url.removeprefix("http://") for each in (one, two)]
        nginx = as_here(tmp_path, port, {
            "gateway-1:8787": hosts[0],
            "gateway-2:8787": hosts[1],
            "listen 8788": f"listen 127.0.0.1:{free_port()}",
        })  # fmt: skip
        with running(nginx, tmp_path, port):
            yield Site(f"http://127.0.0.1:{port}", one.api_key, [one, two])


def as_here(folder: Path, port: int, addresses: dict[str, str]) -> list[str]:
    """Return the command of nginx with the recipe, whose addresses are replaced."""
    text = RECIPE.read_text()
    for written, meant in {"listen 8787": f"listen 127.0.0.1:{port}", **addresses}.items():
        assert written in text
        text = text.replace(written, meant)
    recipe = folder / RECIPE.name
    recipe.write_text(text)
    return _nginx(folder, recipe)


def answered(replica: Gateway) -> bool:
    """Tell whether a replica has answered a gate over HTTP."""
    return 'route="/gate",status="200"' in metrics_of(replica.base_url)


def test_calls_reach_both_and_survive_the_end_of_one(site: Site) -> None:
    headers = {"X-API-Key": site.api_key, "X-Guard-Protocol": "3"}
    with httpx.Client(base_url=site.url, headers=headers) as http:

        def asks(count: int) -> set[int]:
            body = {"kind": "call", "function": "f"}
            return {http.post("/gate", json={**body, "call_id": f"c{n}"}).status_code
                    for n in range(count)}  # fmt: skip

        assert asks(20) == {200}
        until(lambda: all(answered(each) for each in site.replicas))
        site.replicas[1].stop()
        assert asks(20) == {200}, "what takes no connection is passed over"
        assert http.get("/metrics").status_code == 403
        assert http.get("/readyz").status_code == 200


def test_a_kill_at_one_replica_reaches_a_socket_at_the_other(site: Site) -> None:
    runtime = GuardRuntime(site.api_key, site.url, timeout_ms=60_000).open()
    try:

        @guard.protect
        def work() -> bool:
            return False

        until(lambda: runtime.status().control_channel == "websocket")
        until(lambda: sum(map(sockets, site.replicas)) > 0)
        held = [sockets(each) for each in site.replicas]
        assert sorted(held) == [0, 1]
        site.replicas[held.index(0)].admin.kill("proxied")
        with guard.workflow("proxied"), pytest.raises(guard.WorkflowKilledInterrupt):
            until(work)
    finally:
        runtime.shutdown(2)


@attrs.frozen
class Proxies:
    """Two proxies for programs behind nginx, both of one gateway."""

    url: str
    addresses: list[str]
    processes: list[subprocess.Popen[str]]


@pytest.fixture
def vendor() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with run_gateway() as running:
        yield running


@pytest.fixture
def proxies(gateway: Gateway, vendor: StandIn, tmp_path: Path) -> Iterator[Proxies]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    made = gateway.admin.create_key_full("proxy", role="proxy", every_organisation=True)
    settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"],
                "GUARD_PROXY_METRICS_KEY": METRICS_KEY}  # fmt: skip
    words = ("--upstream", f"openai={vendor.url}")
    with serving(*words, **settings) as (one, first), serving(*words, **settings) as (two, second):
        port, host = free_port(), gateway.base_url.removeprefix("http://")
        # The names that Docker would look up are addresses here.
        nginx = as_here(tmp_path, free_port(), {
            "gateway-1:8787": host,
            "gateway-2:8787": host,
            "50% 1;": f"50% {one.removeprefix('http://')};",
            "*   2;": f"*   {two.removeprefix('http://')};",
            "llm-proxy-$guard_llm_proxy:8788": "$guard_llm_proxy",
            "listen 8788": f"listen 127.0.0.1:{port}",
        })  # fmt: skip
        with running(nginx, tmp_path, port):
            yield Proxies(f"http://127.0.0.1:{port}", [one, two], [first, second])


def test_programs_reach_both_proxies_and_each_keeps_to_its_own(
    proxies: Proxies, gateway: Gateway
) -> None:
    # Enough that it is not by chance that all keep to the same one.
    callers = [Caller.of(gateway, gateway.organisation_id) for _ in range(30)]
    assert [each.post(proxies.url).status_code for each in callers * 2] == [200] * 60
    until(lambda: sum(map(requests, proxies.addresses)) >= 60)
    passed = [requests(each) for each in proxies.addresses]
    assert sum(passed) == 60
    assert min(passed) >= 2
    assert all(count % 2 == 0 for count in passed)
    until(lambda: all(each.charged() > 0 for each in callers))
    assert httpx.get(f"{proxies.url}/metrics").status_code == 403
    proxies.processes[0].kill()
    proxies.processes[0].wait(WAIT_S)
    answers = [each.post(proxies.url).status_code for each in callers]
    assert (answers.count(502), answers.count(200)) == (passed[0] // 2, passed[1] // 2)


def test_nginx_passes_on_a_stream_as_it_comes_and_a_kill_within_it(
    proxies: Proxies, gateway: Gateway, vendor: StandIn
) -> None:
    caller = Caller.of(gateway)
    vendor.hold = True  # after its first piece
    path, headers = f"{proxies.url}/openai/v1/chat/completions", {"x-guard-key": caller.key}
    with httpx.stream(
        "POST", path, json=CHAT | {"stream": True}, headers=headers, timeout=WAIT_S
    ) as response:
        pieces = response.iter_raw()
        assert b"data: " in next(pieces)
        caller.admin.directive("kill", reason="runaway")
        assert b"an operator has stopped this: runaway" in b"".join(pieces)


def test_nginx_passes_on_large_bodies_and_whole_answers_byte_by_byte(
    proxies: Proxies, gateway: Gateway, vendor: StandIn
) -> None:
    caller = Caller.of(gateway)
    text = "word " * (1 << 20)  # more than the gateway's own limit, or nginx's usual one
    body = {**CHAT, "messages": [{"role": "user", "content": text}]}
    content = json.dumps(body).encode()
    headers = {"x-guard-key": caller.key, "content-type": "application/json"}
    answer = httpx.post(
        f"{proxies.url}/openai/v1/chat/completions", content=content, headers=headers,
        timeout=WAIT_S,
    )  # fmt: skip
    assert answer.status_code == 200
    assert vendor.bodies[-1] == content


def requests(proxy: str) -> int:
    """Return how many requests a proxy has answered."""
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in metrics_of(proxy).splitlines()
        if line.startswith("guard_proxy_requests_total")
    )


def sockets(replica: Gateway) -> int:
    text = metrics_of(replica.base_url)
    [line] = [line for line in text.splitlines()
              if line.startswith("guard_gateway_control_sockets ")]  # fmt: skip
    return int(float(line.split()[1]))
