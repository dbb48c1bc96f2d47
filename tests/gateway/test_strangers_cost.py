"""What who has no key can make a gateway do: little, on every route that there is."""

from __future__ import annotations

import itertools
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
from starlette.routing import Route

from guard.gateway.app import GatewayApp
from guard.gateway.settings import GatewaySettings
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.openid_provider import openid_provider

TIMES: Final = 6
DEAREST: Final = 20
"""In gates of a tenant. The dearest asks the provider for a token; others cost two at most."""

_numbers = itertools.count()
_QUERIES: Final = {"/sign-in/openid/callback": "?state=s&code=c"}


def routes(folder: Path) -> Iterator[tuple[str, str]]:
    """Return method and path of every route of a gateway."""
    app = GatewayApp(GatewaySettings(database=folder / "g.sqlite3"))
    for route in app._cold.routes:
        assert isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield method, re.sub(r"\{\w+\}", "x", route.path)
    for path in app._hot:
        yield from (("GET", path), ("POST", path))


def cpu_ms(pid: int) -> float:
    """Return the time that a process has worked."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e6


def wrong_keys() -> dict[str, str]:
    """Return headers with every kind of key, each one a new one."""
    word = secrets.token_hex(16)
    return {
        "X-API-Key": f"gdk_{word}", "Authorization": f"Bearer gda_{word}",
        "Cookie": f"guard_session={word}; guard_openid=s.n.v.Lw==",
    }  # fmt: skip


def gate(gateway: GatewayProcess, http: httpx.Client) -> None:
    """Ask for a call as a tenant does."""
    body = {"call_id": f"c{next(_numbers)}", "kind": "call", "function": "f"}
    assert http.post("/gate", json=body, headers={"X-API-Key": gateway.key}).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.generator("requests of strangers, by route, each cheap")
def test_no_route_costs_much_without_a_key(
    tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    headers = {"X-Guard-Protocol": "3"}
    with (
        openid_provider([{"sub": "1"}]) as issuer,
        gateway_process(
            openid_issuer=issuer, openid_client_id="guard", login_key="k" * 40
        ) as gateway,
        httpx.Client(base_url=gateway.url, headers=headers, timeout=120) as tenant,
        httpx.Client(base_url=gateway.url, headers=headers, timeout=120) as stranger,
    ):
        process = psutil.Process(gateway.pid)

        def cost_ms(ask: Callable[[], object], times: int) -> float:
            ask()  # what is made once is made
            before = cpu_ms(gateway.pid)
            for _ in range(times):
                ask()
            return (cpu_ms(gateway.pid) - before) / times

        def ask(method: str, path: str, given: dict[str, str]) -> int:
            stranger.cookies.clear()
            body = None if method == "GET" else {"a": 1}
            path += _QUERIES.get(path, "")
            return stranger.request(method, path, headers=given, json=body).status_code

        gate_ms = cost_ms(lambda: gate(gateway, tenant), 100)
        dear, grown, cases = {}, {}, 0
        for method, path in routes(tmp_path):
            for headers_of in (dict, wrong_keys):
                assert ask(method, path, headers_of()) < 503, (method, path)
                held = process.memory_info().rss
                found = cost_ms(lambda: ask(method, path, headers_of()), TIMES)  # noqa: B023  # called here
                if found > DEAREST * gate_ms:
                    dear[method, path] = found / gate_ms
                if (more := process.memory_info().rss - held) > 4 << 20:
                    grown[method, path] = more
                cases += 1
            gate(gateway, tenant)
        assert not dear, dear
        assert not grown, grown
        assert cases > 200
        count_cases(cases)
