"""The recipe of nginx for replicas, started as it is but for addresses, in front of two of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest

import guard
from guard.gateway.embedded import Gateway, run_gateway
from guard.runtime.runtime import GuardRuntime
from tests.deploy.test_proxies import _nginx, free_port, running, until
from tests.support import postgres

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
    options = {"public_url": f"http://127.0.0.1:{port}", "trusted_proxies": ("127.0.0.1",)}
    with run_gateway(database, **options) as one, run_gateway(database, **options) as two:
        text = RECIPE.read_text()
        for written, meant in (
            ("gateway-1:8787", one.base_url.removeprefix("http://")),
            ("gateway-2:8787", two.base_url.removeprefix("http://")),
            ("listen 8787", f"listen 127.0.0.1:{port}"),
            ("listen 8788", f"listen 127.0.0.1:{free_port()}"),
        ):
            assert written in text
            text = text.replace(written, meant)
        recipe = tmp_path / RECIPE.name
        recipe.write_text(text)
        with running(_nginx(tmp_path, recipe), tmp_path, port):
            yield Site(f"http://127.0.0.1:{port}", one.api_key, [one, two])


def answered(replica: Gateway) -> bool:
    """Tell whether a replica has answered a gate over HTTP."""
    return 'route="/gate",status="200"' in httpx.get(f"{replica.base_url}/metrics").text


def test_calls_reach_both_and_survive_the_end_of_one(site: Site) -> None:
    headers = {"X-API-Key": site.api_key, "X-Guard-Protocol": "3"}
    with httpx.Client(base_url=site.url, headers=headers) as http:

        def asks(count: int) -> set[int]:
            body = {"kind": "call", "function": "f"}
            return {http.post("/gate", json={**body, "call_id": f"c{n}"}).status_code
                    for n in range(count)}  # fmt: skip

        assert asks(20) == {200}
        assert all(answered(each) for each in site.replicas)
        site.replicas[1].stop()
        assert asks(20) == {200}, "what takes no connection is passed over"
        assert http.get("/metrics").status_code == 403
        assert http.get("/readyz").status_code == 200


def test_a_kill_at_one_replica_reaches_a_socket_at_the_other(site: Site) -> None:
    runtime = GuardRuntime(site.api_key, site.url, timeout_ms=10_000).open()
    try:

        @guard.protect
        def work() -> bool:
            return False

        until(lambda: runtime.status().control_channel == "websocket")
        held = [sockets(each) for each in site.replicas]
        assert sorted(held) == [0, 1]
        site.replicas[held.index(0)].admin.kill("proxied")
        with guard.workflow("proxied"), pytest.raises(guard.WorkflowKilledInterrupt):
            until(work)
    finally:
        runtime.shutdown(2)


def sockets(replica: Gateway) -> int:
    text = httpx.get(f"{replica.base_url}/metrics").text
    [line] = [line for line in text.splitlines()
              if line.startswith("guard_gateway_control_sockets ")]  # fmt: skip
    return int(float(line.split()[1]))
