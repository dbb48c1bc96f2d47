"""Behind the proxy too, a stream that broke off costs what its vendor says afterwards."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import httpx
import pytest

from guard.gateway.embedded import Gateway
from tests.support.run_proxy import run_proxy
from tests.support.telling_vendor import OPENAI, OPENROUTER, Kind, Vendor
from tests.support.waiting import until

AT_LOOPBACK: Final = """
import socket
from msgspec import structs
from guard.core.vendors import VENDORS
from guard.instrumentation import vendors_word

find = socket.getaddrinfo
vendor = VENDORS["{name}"]
url = vendor.bill.url.replace("https://", "http://").replace("{{host}}", "{host}")
url = url.replace("{host}", "{host}:{port}")
VENDORS["{name}"] = structs.replace(vendor, bill=structs.replace(vendor.bill, url=url))
vendors_word.ASKS_AFTER_S = 0.1

def found(host, *args, **options):
    return find("127.0.0.1" if host in ("{host}", b"{host}") else host, *args, **options)

socket.getaddrinfo = found
"""
"""Leads the proxy's process from the vendor's name to the stand-in, without TLS."""


@pytest.mark.parametrize("who", ["its reader leaves", "the vendor cuts it"])
@pytest.mark.parametrize("kind", [OPENROUTER, OPENAI], ids=lambda kind: kind.name)
def test_a_stream_that_broke_off_costs_what_its_vendor_says(
    gateway: Gateway, tmp_path: Path, kind: Kind, who: str
) -> None:
    rates = {"input_per_mtok": 10**9, "output_per_mtok": 10**10}
    gateway.admin.set_price("gpt-5", **rates)
    gateway.admin.set_price("openai/gpt-5", **rates)
    vendor = Vendor(kind)
    vendor.cuts = who == "the vendor cuts it"
    threading.Thread(target=vendor.serve_forever, daemon=True).start()
    port = vendor.server_address[1]
    (tmp_path / "sitecustomize.py").write_text(
        AT_LOOPBACK.format(name=kind.name, host=kind.host, port=port)
    )
    upstreams = {kind.name: f"http://{kind.host}:{port}"}
    try:
        with run_proxy(
            gateway, tmp_path, upstreams, limit_nanousd=10**9, PYTHONPATH=str(tmp_path)
        ) as proxy:
            url = f"{proxy.url}/{kind.name}{kind.path}"
            with httpx.stream("POST", url, json=kind.body, headers=kind.headers) as answer:
                next(answer.iter_lines())

            def balance() -> tuple[int, int]:
                [row] = gateway.admin.ledger()
                return row["committed"], row["reserved"]

            until(lambda: balance() == (kind.bill, 0))
            [(where, sent)] = vendor.asked
            assert (where, sent["authorization"]) == (kind.where, kind.repeated["authorization"])
    finally:
        vendor.left.set()
        vendor.shutdown()
        vendor.server_close()
